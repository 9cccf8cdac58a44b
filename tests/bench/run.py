"""`make bench`: runs the benches, writes their figures as JSON and as a table. Never part of the test run.

Figures are medians and ratios within one run on one machine; compare the ratios, not the absolute times of two machines.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import orjson

BENCHES = {
    "forwarder": "start to exit of agenttrace-hook, beside `true`",
    "collector": "hooks a second and handler time, journal and redaction on",
    "capture": "redaction and facts",
    "operators": "cost of each operator in process",
    "pipelines": "operators on real Kafka, beside a plain aiokafka loop",
    "sink": "rows a second into ClickHouse, beside the client alone",
}
OUT = Path(".agenttrace/bench")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Figures with dotted names."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in flat(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list):
        return [row for index, item in enumerate(value) for row in flat(item, f"{name}[{index}]")]
    return [(name, value)]


def table(results: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = []
    for name, found in results["benches"].items():
        lines += [f"### {name}: {BENCHES[name]}", "", "| figure | value |", "| --- | --- |"]
        for figure, value in flat(found):
            lines.append(f"| {figure} | {round(value, 3) if isinstance(value, float) else value} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the named benches, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="benches to run; all without any")
    names = parser.parse_args().names or list(BENCHES)
    results: dict[str, Any] = {"machine": machine(), "benches": {}}
    for name in names:
        began = time.monotonic()
        print(f"{name}: {BENCHES[name]} …", file=sys.stderr, flush=True)
        results["benches"][name] = importlib.import_module(f"tests.bench.bench_{name}").run()
        print(f"{name}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "results.json").write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2) + b"\n")
    (OUT / "results.md").write_text(table(results), encoding="utf-8")
    print(table(results))
    print(f"written: {OUT}/results.json, {OUT}/results.md", file=sys.stderr)


if __name__ == "__main__":
    main()
