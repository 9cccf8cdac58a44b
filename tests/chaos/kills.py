"""Storm "kills": thousands of hooks while collector, worker and sink are killed with -9 in turn."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.judge import Verdict, judge
from tests.chaos.load import Load, latencies
from tests.chaos.stand import PARTS, TTL_MS, Stand, wait_for

HOOKS = 10_000
RATE = 250.0
EACH = 3


def storm(
    folder: Path, *, hooks: int = HOOKS, each: int = EACH, rate: float = RATE, seed: int = 1, ttl_ms: int = TTL_MS
) -> Verdict:
    """One run on a fresh stack: every part is killed `each` times, spread over the load."""
    chance = random.Random(seed)
    names = [name for _ in range(each) for name in chance.sample(PARTS, len(PARTS))]
    with Stand(folder, ttl_ms=ttl_ms) as stand:
        load = Load(stand.home, folder / "fates.jsonl", hooks=hooks, rate=rate, seed=seed)
        try:
            for number, name in enumerate(names):
                due = hooks * (number + chance.uniform(0.5, 1)) / (len(names) + 1)
                wait_for(lambda due=due: load.sent() >= due or not load.running(), "the load goes on", 300, 0.02)
                stand.kill(name)
            fates = load.fates(timeout_s=300)
        finally:
            load.kill()
        wait_for(stand.all_up, "the supervisor has started every part again", 60)
        verdict = judge(stand, fates)
        verdict.figures["restarts"] = {name: part.restarts for name, part in stand.parts().items()}
    if any(count != each for count in verdict.figures["restarts"].values()):
        verdict.problems.append(f"every part was to be killed {each} times, restarts: {verdict.figures['restarts']}")
    p50, p95 = latencies(iter(fates))
    verdict.figures |= {"p50_ms": p50, "p95_ms": p95}
    return verdict
