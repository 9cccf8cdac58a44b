"""A disk that is really full: a small file system of its own, where the system allows to mount one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from services.collector import service
from services.collector.reserve import RESERVE_BYTES

from .running import named, running, settings, until
from .test_full import Memory, hook, hooks

ROOT = Path(__file__).parents[3]
IN_MOUNT = "mount -t tmpfs -o size=8m none {0} && exec {1} -m tests.services.collector.test_full_disk {0}"


def _may_mount() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.integration
@pytest.mark.skipif(not _may_mount(), reason="no file system may be mounted here")
def test_a_full_file_system_and_restarts_on_it_keep_every_end_and_count_every_start(tmp_path: Path) -> None:
    command = ["unshare", "-rm", "sh", "-c", IN_MOUNT.format(tmp_path, sys.executable)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def fill(disk: Path) -> None:
    """Take every byte that is left."""
    with open(disk / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


async def scenario(disk: Path) -> None:
    service.TICK_S = 0.05
    ends = 0
    for _ in range(3):
        async with running(settings(disk / "home", [Memory("memory", away=True)])) as collector:
            fill(disk)
            assert not os.statvfs(disk).f_bavail
            bodies = [hook(number // 2, end=number % 2 == 1) for number in range(2 * ends, 2 * ends + 80)]
            ends += 40
            assert set(await hooks(collector, *bodies, spools=ends != 80)) == {200}
    (disk / "filler").unlink()
    sink = Memory("memory", away=False)
    async with running(settings(disk / "home", [sink])) as collector:
        await until(lambda: bool(named(disk / "home", "producer.dropped")) and not collector.intake.problem)
        assert collector.intake.reserve.room == RESERVE_BYTES
    stamps = [(event["producer"]["epoch"], event["producer"]["seq"]) for event in sink.events]
    assert stamps == sorted(set(stamps))
    names = Counter(event["event_name"] for event in sink.events)
    counted = sum(event["count"] for event in sink.events if event["event_name"] == "producer.dropped")
    assert names["tool.call.completed"] == ends == counted + names["tool.call.started"]


if __name__ == "__main__":
    asyncio.run(scenario(Path(sys.argv[1])))
