"""Storm "disk_full": the state folder lies on a small tmpfs that fills up while the broker is away. Agents are answered
throughout; what was dropped is told exactly, by drop class.

The tmpfs needs a mount namespace of its own, so the storm runs in a child under `unshare -Urm`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import orjson

from schemas.config import Config
from schemas.identity import new_delivery_id
from schemas.topics import LAST_CLASS, drop_class
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS, normalise
from services.capturing import from_config
from tests.chaos.agents import Agents
from tests.chaos.judge import SETTLE_S, Verdict
from tests.chaos.load import Fate, Load, latencies
from tests.chaos.log import InputLog
from tests.chaos.stand import Failure, Stand, bring_back, strike, wait_for

HOOKS = 4_000
RATE = 200.0
DISK_BYTES = 48 << 20
LEFT_BYTES = 256
"""Room left for each hook to come: about a fifth of what it needs."""
_UNSHARE = ("unshare", "-Urm")
_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$0"'


class Unavailable(Exception):
    """This machine does not let the storm have a disk of its own."""


def storm(folder: Path, *, hooks: int = HOOKS, rate: float = RATE) -> Verdict:
    """Run the storm in a child that may mount. Raises Unavailable with the reason where none may."""
    home = folder / "home"
    home.mkdir()
    probe = subprocess.run(
        [*_UNSHARE, "sh", "-c", _MOUNT, str(home), "1m"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        raise Unavailable(f"no tmpfs of its own, neither as root nor by user namespaces: {probe.stderr.strip()[:200]}")
    out = folder / "verdict.json"
    inside = [sys.executable, "-m", "tests.chaos.disk_full", str(folder), str(hooks), str(rate), str(out)]
    command = [*_UNSHARE, "sh", "-c", f'{_MOUNT} && shift && exec "$@"', str(home), str(DISK_BYTES), *inside]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    return Verdict(**orjson.loads(out.read_bytes()))


def _inside(folder: Path, hooks: int, rate: float) -> Verdict:
    verdict = Verdict()
    fates: list[Fate] = []
    with Stand(folder) as stand:
        ballast = stand.home / "ballast"
        calm = _load(stand, folder, seed=1, hooks=hooks // 4, rate=rate)
        disk = os.statvfs(stand.home)
        strike(stand.broker)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - hooks * LEFT_BYTES)
        try:
            full = _load(stand, folder, seed=2, hooks=hooks // 2, rate=rate)
            dropped = stand.metric("agenttrace_collector_dropped_total")
            # The count must outlive the process.
            stand.kill("collector")
            wait_for(lambda: _is_new(stand), "the collector is back", 60)
            again = _load(stand, folder, seed=3, hooks=hooks // 4, rate=rate)
            fates = [*calm, *full, *again]
            began = time.monotonic()
            bring_back(stand.broker)
            ballast.unlink()
            log = InputLog(stand.kafka)
            expected = _expected(fates, folder)
            told = _settled(log, expected)
            verdict.figures["settle_s"] = round(time.monotonic() - began, 1)
        except Failure as failure:
            verdict.problems.append(str(failure))
            return verdict
    if not dropped:
        verdict.problems.append("the disk was never full: nothing was dropped")
    unanswered = sum(fate.answer != 200 for fate in fates)
    if unanswered:
        verdict.problems.append(f"{unanswered} of {len(fates)} hooks were not answered with 200")
    for name in sorted(expected.keys() | log.by_class.keys() | told.keys()):
        if expected[name] != log.by_class[name] + told[name]:
            verdict.problems.append(
                f"class {name}: {expected[name]} events were made, {log.by_class[name]} arrived, {told[name]} are in receipts"
            )
    if told[str(LAST_CLASS)]:
        verdict.problems.append(
            f"{told[str(LAST_CLASS)]} ends, errors or decisions were dropped while there was a reserve"
        )
    verdict.say("unreceipted gaps", log.gaps())
    verdict.figures |= {
        "hooks": len(fates),
        "made": dict(expected),
        "arrived": dict(log.by_class),
        "in_receipts": dict(told),
        "receipts": len(log.receipts),
        "p50_p95_ms": {
            name: [round(ms, 2) for ms in latencies(iter(found))]
            for name, found in (("calm", calm), ("disk full", [*full[len(full) // 2 :], *again]))
        },
    }
    return verdict


def _load(stand: Stand, folder: Path, *, seed: int, hooks: int, rate: float) -> list[Fate]:
    load = Load(stand.home, folder / f"fates-{seed}.jsonl", hooks=hooks, rate=rate, seed=seed, anonymous=0.5)
    try:
        return load.fates(timeout_s=hooks / rate + 120)
    finally:
        load.kill()


def _is_new(stand: Stand) -> bool:
    # On the full disk the supervisor's run file is of before; a new process counts from 0.
    return stand.metric("agenttrace_collector_hooks_total") == 0


def _expected(fates: list[Fate], folder: Path) -> Counter[str]:
    """Events by drop class that the adapters make of what was answered."""
    capture = from_config(Config(), folder)
    agents = Agents()
    made: Counter[str] = Counter()
    streams = {}
    for seed, fate in _with_seed(fates):
        hooks, calls = streams.setdefault((seed, fate.connection), (agents.hooks(seed, fate.connection), CallTable()))
        hook = next(hooks)
        assert (hook.session, hook.name) == (fate.session, fate.hook)
        adapter = ADAPTERS[hook.runtime]
        now_ms = time.time_ns() // 1_000_000
        context = Context(
            runtime=adapter.runtime,
            adapter=adapter.contract,
            delivery_id=new_delivery_id(now_ms),
            happened_ms=now_ms,
            observed_ms=now_ms,
            capture=capture,
            calls=calls,
        )
        made.update(str(drop_class(event.event_name)) for event in normalise(hook.body, context))
    return made


def _with_seed(fates: list[Fate]) -> list[tuple[int, Fate]]:
    # A session's name ends in its tag: seed, connection and number.
    return [(int(fate.session.rpartition("-")[2].partition("x")[0], 16), fate) for fate in fates]


def _settled(log: InputLog, expected: Counter[str]) -> Counter[str]:
    """What the receipts tell, once everything is accounted for or nothing more comes. Raises Failure."""

    def told() -> Counter[str]:
        return sum((Counter(receipt.by_class) for receipt in log.receipts.values()), Counter())

    def all_there() -> bool:
        log.read()
        return sum(expected.values()) <= sum(log.by_class.values()) + sum(told().values())

    try:
        wait_for(all_there, "all is in Kafka or in receipts", SETTLE_S / 2, 1)
    except Failure:
        pass
    return told()


def main() -> None:
    folder, hooks, rate, out = sys.argv[1:]
    Path(out).write_bytes(orjson.dumps(asdict(_inside(Path(folder), int(hooks), float(rate)))))


if __name__ == "__main__":
    main()
