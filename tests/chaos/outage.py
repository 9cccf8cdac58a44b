"""Storm "outage": under a steady load the broker, then ClickHouse, is killed with -9 and stays away; the agents must not notice."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from services.embedded.launcher import Launcher
from tests.chaos.judge import Verdict, judge
from tests.chaos.load import Fate, Load, latencies
from tests.chaos.log import lag
from tests.chaos.stand import Stand, bring_back, strike, wait_for

ROUNDS = 5
AWAY_S = 30.0
RATE = 120.0
P95_MS = 10.0
RATIO = 1.5
CAUGHT_UP_S = 240.0
Span = tuple[float, float]
"""Begin and end, by the machine's monotonic clock."""
PHASES = ("calm", "broker away", "broker back", "ClickHouse away", "ClickHouse back")


def storm(folder: Path, *, rounds: int = ROUNDS, away_s: float = AWAY_S, rate: float = RATE) -> Verdict:
    """Interleaved rounds of the phases; medians over the rounds decide."""
    times: dict[str, list[Span]] = {phase: [] for phase in PHASES}
    with Stand(folder) as stand:
        load = Load(stand.home, folder / "fates.jsonl", rate=rate)
        try:
            wait_for(lambda: load.sent() > 5 * rate, "the load runs", 60)
            for _ in range(rounds):
                times["calm"].append(_phase(away_s))
                for name, server in (("broker", stand.broker), ("ClickHouse", stand.engine)):
                    away, back = _away(stand, server, away_s, rate)
                    times[f"{name} away"].append(away)
                    times[f"{name} back"].append(back)
            load.stop()
            fates = load.fates(60)
        finally:
            load.kill()
        verdict = judge(stand, fates, journal=False)
    _answers(fates, times, verdict)
    return verdict


def _phase(seconds: float) -> Span:
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _away(stand: Stand, server: Launcher, away_s: float, rate: float) -> tuple[Span, Span]:
    """The time it was away, and the time until everything had caught up."""
    strike(server)
    away = _phase(away_s)
    began = time.monotonic()
    bring_back(server)
    # Under load nothing is ever at rest: caught up is what three seconds of load amount to.
    events = 3 * 2 * rate

    def caught_up() -> bool:
        return stand.metric("agenttrace_collector_unpublished_bytes") < events * 2048 and lag(stand.kafka) < 2 * events

    wait_for(caught_up, f"caught up after {server.name} was away", CAUGHT_UP_S, 0.5)
    return away, (began, time.monotonic())


def _answers(fates: list[Fate], times: dict[str, list[Span]], verdict: Verdict) -> None:
    medians: dict[str, tuple[float, float]] = {}
    for phase, spans in times.items():
        found = [latencies(fate for fate in fates if begin <= fate.at < end) for begin, end in spans]
        medians[phase] = tuple(round(statistics.median(column), 2) for column in zip(*found, strict=True))
    verdict.figures["p50_p95_ms"] = {phase: list(pair) for phase, pair in medians.items()}
    for name in ("broker", "ClickHouse"):
        spans = times[f"{name} back"]
        verdict.figures[f"{name}_caught_up_s"] = round(statistics.median(end - begin for begin, end in spans), 1)
    unanswered = sum(fate.answer != 200 for fate in fates)
    if unanswered:
        verdict.problems.append(f"{unanswered} of {len(fates)} hooks were not answered although the collector lived")
    calm = medians["calm"][1]
    if calm >= P95_MS:
        verdict.problems.append(
            f"calm P95 is {calm} ms already, {P95_MS:.0f} ms is the bound: too busy a machine to judge latencies by"
        )
    for phase in ("broker away", "ClickHouse away"):
        p95 = medians[phase][1]
        if p95 > RATIO * calm or (p95 >= P95_MS > calm):
            verdict.problems.append(
                f"{phase}: P95 {p95} ms; calm {calm} ms; bound {RATIO} times that, and {P95_MS:.0f} ms"
            )
