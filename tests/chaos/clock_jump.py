"""Storm "clock_jump": the clocks of collector and worker jump an hour ahead, then to an hour behind, then back, under load."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from tests.chaos.judge import Verdict, judge
from tests.chaos.load import Load, latencies
from tests.chaos.stand import Stand, wait_for

HOOKS = 4_000
RATE = 150.0
HOUR_S = 3600
JUMPS_S = (0, HOUR_S, -HOUR_S, 0)
SEAM = Path(__file__).with_name("clock")


class Clock:
    """What the clocks of collector and worker are ahead by; see clock/sitecustomize.py."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 8)
        path = os.pathsep.join(filter(None, (str(SEAM), os.environ.get("PYTHONPATH"))))
        self.env = {"PYTHONPATH": path, "AGENTTRACE_CHAOS_CLOCK": str(file)}

    def ahead(self, seconds: int) -> None:
        """From now on."""
        struct.pack_into("<q", self._page, 0, seconds * 1_000_000_000)


def storm(folder: Path, *, hooks: int = HOOKS, rate: float = RATE) -> Verdict:
    """A quarter of the connections send no delivery id, so that their events carry the collector's clock."""
    clock = Clock(folder / "clock")
    with Stand(folder, env=clock.env) as stand:
        load = Load(stand.home, folder / "fates.jsonl", hooks=hooks, rate=rate, anonymous=0.25)
        try:
            for number, seconds in enumerate(JUMPS_S[1:], start=1):
                due = hooks * number / len(JUMPS_S)
                wait_for(lambda due=due: load.sent() >= due or not load.running(), "the load goes on", 300)
                clock.ahead(seconds)
            fates = load.fates(timeout_s=300)
        finally:
            load.kill()
        verdict = judge(stand, fates)
    p50, p95 = latencies(iter(fates))
    verdict.figures |= {"p50_ms": p50, "p95_ms": p95}
    return verdict
