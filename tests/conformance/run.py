"""The official conformance suite, directly and through `agenttrace proxy http`, compared check by check.

    python -m tests.conformance.run                               # all of the following, both modes
    python -m tests.conformance.run --requirements 2026-07-28     # what one revision of the specification requires
    python -m tests.conformance.run --client                      # only with the suite as the server

The suites are `@modelcontextprotocol/conformance` 0.1.16 (its active scenarios) and 0.2.0-alpha.12 (`--requirements`, frozen
sets; it runs more scenarios than these and does not score them, here they are compared too). In server mode the suite is
the client and tests.mcp_servers.everything the server; in client mode the suite is the server and tests.conformance.client
the client. Verdicts, and all that the suite wrote down, go to `.agenttrace/conformance/`; the exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas.errors import UserError
from tests.conformance import packages
from tests.conformance.running import ROOT, counted, http_proxy, http_server

OUT = ROOT / ".agenttrace" / "conformance"
REVISIONS = ("2025-11-25", "2026-07-28")
_PARALLEL = 2
_SUITE_WITHIN_S = 240
_CLIENT = f"{sys.executable} -m tests.conformance.client"
_STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")

Verdicts = dict[str, list[tuple[str, str]]]
"""Of each scenario, (check, status) in the order of checks; a check may be there several times."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One suite in one mode."""

    mode: str
    requirements: str | None

    @property
    def name(self) -> str:
        """For the table and the file."""
        return f"{self.mode} {self.requirements or 'active'}"

    @property
    def suite(self) -> list[str]:
        """The command that runs it."""
        package = "conformance-revisions" if self.requirements else "conformance"
        return [str(packages.NODE), packages.module(f"@modelcontextprotocol/{package}", "dist", "index.js")]

    def scenarios(self) -> list[str]:
        """What it has in this mode."""
        which = ["--requirements", self.requirements] if self.requirements else []
        listed = subprocess.run(
            [*self.suite, "list", f"--{self.mode}", *which], capture_output=True, text=True, check=True
        ).stdout
        # Of a revision's list the scored ones of both modes come first, then others with their mode behind them.
        mine, scored = [], None
        for line in listed.splitlines():
            if line.startswith(("Server scenarios", "Client scenarios")):
                scored = line.split()[0].lower()
            elif line.startswith("Run and reported"):
                scored = None
            elif (entry := re.match(r" +- (\S+)(?: \[([\w,.-]+)\])?$", line)) and self.mode in (scored, entry[2]):
                mine.append(entry[1])
        return mine


@dataclass(frozen=True, slots=True)
class Compared:
    """What one leg gave; scenarios and checks are those of the direct run."""

    scenarios: int
    checks: int
    passed: int
    passed_proxied: int
    events: int
    differing: list[str]


def main() -> None:
    """Run the legs asked for; exit 1 where a verdict differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requirements", choices=REVISIONS, help="only what this revision requires")
    parser.add_argument("--client", action="store_true", help="only with the suite as the server")
    args = parser.parse_args()
    try:
        packages.node_packages()
    except UserError as error:
        sys.exit(f"conformance: {error}")
    revisions = (args.requirements,) if args.requirements else (None, *REVISIONS)
    modes = ("client",) if args.client else ("server", "client")
    wrong = 0
    for mode in modes:
        for revision in revisions:
            leg = Leg(mode, revision)
            found = compared(leg, OUT / leg.name.replace(" ", "-"))
            print(
                f"{leg.name:<18} {found.scenarios:>3} scenarios {found.checks:>4} checks   passed {found.passed:>4} direct "
                f"{found.passed_proxied:>4} proxied   differing {len(found.differing)}   ({found.events} events observed)",
                flush=True,
            )
            for line in found.differing:
                print(f"  {line}")
            wrong += len(found.differing)
    sys.exit(1 if wrong else 0)


def compared(leg: Leg, folder: Path) -> Compared:
    """Run a leg both ways; what the suite writes down and the verdicts go to the folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sink = folder / "events.jsonl"
    direct, proxied = (_server if leg.mode == "server" else _clients)(leg, folder, sink)
    found = Compared(
        scenarios=len(direct),
        checks=sum(map(len, direct.values())),
        passed=_passed(direct),
        passed_proxied=_passed(proxied),
        events=counted(sink),
        differing=differences(direct, proxied) or ([] if direct else ["the suite gave no verdict at all"]),
    )
    verdicts = {key: {"direct": direct.get(key), "proxied": proxied.get(key)} for key in direct | proxied}
    (folder / "verdicts.json").write_text(json.dumps(asdict(found) | {"verdicts": verdicts}, indent=1) + "\n")
    return found


def differences(direct: Verdicts, proxied: Verdicts) -> list[str]:
    """A line for each check whose statuses are not the same both ways. Statuses are counted: checks may repeat."""
    found = []
    for scenario in sorted(direct | proxied):
        one, other = (Counter(verdicts.get(scenario, [])) for verdicts in (direct, proxied))
        for check, status in sorted((one - other) | (other - one)):
            here, there = one[check, status], other[check, status]
            found.append(f"{scenario}: {check} {status} {here} × directly, {there} × proxied")
    return found


def _server(leg: Leg, folder: Path, sink: Path) -> tuple[Verdicts, Verdicts]:
    which = ["--requirements", leg.requirements] if leg.requirements else []

    def judged(url: str, out: Path) -> Verdicts:
        command = [*leg.suite, "server", "--url", url, *which, "--output-dir", str(out)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # what was judged until then is compared
            subprocess.run(command, cwd=folder, capture_output=True, timeout=_SUITE_WITHIN_S, check=False)
        return _read(out)

    with http_server() as url:
        direct = judged(url, folder / "direct")
        with http_proxy(url, folder / "home", sink) as proxy:
            return direct, judged(proxy, folder / "proxied")


def _clients(leg: Leg, folder: Path, sink: Path) -> tuple[Verdicts, Verdicts]:
    """Each scenario alone and two at a time: the suite's own way, all at once, times clients out on a small machine."""
    version = ["--spec-version", leg.requirements, "--force"] if leg.requirements else []

    def judged(scenario: str, out: Path, environment: dict[str, str]) -> None:
        command = [*leg.suite, "client", "--command", _CLIENT, "--scenario", scenario, *version]
        subprocess.run(
            [*command, "--output-dir", str(out)],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            check=False,
        )

    proxied = {"AGENTTRACE_CONFORMANCE_VIA": "proxy", "AGENTTRACE_CONFORMANCE_SINK": str(sink)}
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for scenario in leg.scenarios():
            name = "server" if scenario.startswith("auth/") else "proxy"
            pool.submit(judged, scenario, folder / "direct", {})
            pool.submit(judged, scenario, folder / "proxied", proxied | {"AGENTTRACE_CONFORMANCE_NAME": name})
    return _read(folder / "direct"), _read(folder / "proxied")


def _read(out: Path) -> Verdicts:
    found: Verdicts = {}
    for file in sorted(out.rglob("checks.json")):
        scenario = _STAMP.sub("", str(file.parent.relative_to(out)))
        # INFO is what the suite's server saw pass, not a verdict.
        checks = [check for check in json.loads(file.read_bytes()) if check["status"] != "INFO"]
        found[scenario] = [(check["id"], check["status"]) for check in checks]
    return found


def _passed(verdicts: Verdicts) -> int:
    return sum(status == "SUCCESS" for checks in verdicts.values() for _, status in checks)


if __name__ == "__main__":
    main()
