"""One client and one server, `agenttrace proxy stdio` between them, and what passed on both sides of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conformance import packages
from tests.conformance.running import AGENTTRACE, ROOT, counted
from tests.conformance.stdio.servers import planned

HERE = Path(__file__).parent
CLIENTS = {
    "sdk": [sys.executable, "-m", "tests.conformance.stdio.client", "sdk"],
    "fastmcp": [str(packages.PYTHON), "-m", "tests.conformance.stdio.client", "fastmcp"],
    "typescript1": [str(packages.NODE), str(HERE / "client.mjs"), str(packages.FOLDER), "v1"],
    "typescript2": [str(packages.NODE), str(HERE / "client.mjs"), str(packages.FOLDER), "v2"],
}
_WAYS = {"in": "client to server", "out": "server to client", "err": "standard error", "exit": "exit status"}
_WITHIN_S = 180


@dataclass(frozen=True, slots=True)
class Compared:
    """What one pair gave."""

    scenarios: int
    bytes: int
    """Both directions, on the client's side."""
    events: int
    differing: list[str]
    """A line for each thing that is not the same on both sides, or did not end as it must."""


def compare(client: str, server: str, folder: Path) -> Compared:
    """Run all scenarios of a pair, files in an empty folder."""
    with planned(server, folder) as plan:
        near, far = folder / "near", folder / "far"
        shim = [sys.executable, "-I", str(HERE / "shim.py")]
        sink = folder / "events.jsonl"
        command = [*shim, str(near), AGENTTRACE, "proxy", "stdio", "--server", server, "--sink", f"jsonl:{sink}", "--"]
        # What a client would pass on of its own differs from client to client.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AGENTTRACE_HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
        }
        about = asdict(plan) | {
            "command": [*command, *shim, str(far), *plan.command],
            "environment": environment | plan.environment,
        }
        (folder / "plan.json").write_text(json.dumps(about))
        done = subprocess.run(
            [*CLIENTS[client], str(folder / "plan.json")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        expected = plan.expected()
    differing = []
    ended = json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}
    if not ended:
        said = done.stderr.strip().splitlines() or ["nothing"]
        differing.append(f"the client ended with {done.returncode}: {said[-1]}")
    differing += [
        f"{name} ended as {ended.get(name)}, expected {how}"
        for name, how in expected.items()
        if ended and ended.get(name) != how
    ]
    for way, what in _WAYS.items():
        one, other = (
            Path(f"{side}.{way}").read_bytes() if Path(f"{side}.{way}").exists() else None for side in (near, far)
        )
        if one is None or other is None:
            differing.append(f"{what}: nothing written down on {'the client' if one is None else 'the server'}'s side")
        elif one != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            differing.append(f"{what}: {len(one)} bytes at the client, {len(other)} at the server, first other at {at}")
    sizes = [Path(f"{near}.{way}").stat().st_size for way in ("in", "out") if Path(f"{near}.{way}").exists()]
    return Compared(len(ended), sum(sizes), counted(sink), differing)
