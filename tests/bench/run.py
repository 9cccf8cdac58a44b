"""`make bench`: runs the benches, writes their figures as JSON and as docs/benchmarks.md. Never part of the test run.

A run of some benches only keeps the figures that an earlier run wrote for the others.
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

from tests.bench.report import markdown

BENCHES = {
    "forwarder": "start to exit of agenttrace-hook, beside `true`",
    "collector": "hooks a second and handler time, journal and redaction on",
    "capture": "redaction and facts",
    "operators": "cost of each operator in process, and how it grows",
    "pipelines": "operators on real Kafka, beside a plain aiokafka loop",
    "streams": "the same work hosted by our worker, a plain loop, plain Faust and Quix Streams",
    "sink": "rows a second into ClickHouse, beside the client alone",
    "latency": "from hook to row and from hook to finding, the whole stack on this machine",
    "proxy": "what the MCP proxy adds to a call, against a direct connection and two public proxies",
    "proxy_collector": "5,000 MCP calls with the collector and Kafka alive, and with both dead",
}
OUT = Path(".agenttrace/bench/results.json")
PAGE = Path("docs/benchmarks.md")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> None:
    """Run the named benches, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="benches to run; all without any")
    names = parser.parse_args().names or list(BENCHES)
    before = orjson.loads(OUT.read_bytes())["benches"] if OUT.exists() else {}
    results: dict[str, Any] = {"machine": machine(), "benches": before}
    for name in names:
        began = time.monotonic()
        print(f"{name}: {BENCHES[name]} …", file=sys.stderr, flush=True)
        results["benches"][name] = importlib.import_module(f"tests.bench.bench_{name}").run()
        print(f"{name}: done in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    results["benches"] = {name: results["benches"][name] for name in BENCHES if name in results["benches"]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2) + b"\n")
    page = markdown(results, BENCHES)
    PAGE.write_text(page, encoding="utf-8")
    print(page[: page.index("\n## ", page.index("| kept |"))])
    print(f"written: {OUT}, {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
