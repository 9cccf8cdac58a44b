"""`python -m tests.chaos.cluster.run --storms 5`: storms on a cluster of three brokers, as a table and as JSON.

Exits 1 if any storm has a difference from the replay of the same records, or a receipt too few or too many.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

import orjson

from services.embedded.kafka import KafkaCluster
from tests.chaos.cluster.storm import Result, storm

_COLUMNS = (
    "seed",
    "events",
    "poison",
    "outputs",
    "derived_records",
    "findings",
    "timed_out",
    "take_overs",
    "thrown_out",
)


def main() -> int:
    """Run the storms one after another on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storms", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the first; the next ones count up")
    parser.add_argument("--seconds", type=float, default=45, help="how long each has load and faults")
    parser.add_argument("--rate", type=int, default=300, help="events a second")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--verbose", action="store_true", help="tell each fault")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL, format="%(asctime)s %(message)s")
    if options.verbose:
        logging.getLogger("tests").setLevel(logging.INFO)
    folder = Path(tempfile.mkdtemp(prefix="agenttrace-storm-"))
    clean = False
    try:
        results = asyncio.run(_run(options, folder))
        clean = not any(result.differences for result in results)
        print(orjson.dumps([result.row() for result in results]).decode())
        if options.json:
            options.json.write_bytes(orjson.dumps([result.row() for result in results], option=orjson.OPT_INDENT_2))
    finally:
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs are in {folder}", file=sys.stderr)
    return 0 if clean else 1


async def _run(options: argparse.Namespace, folder: Path) -> list[Result]:
    began = time.monotonic()
    cluster = KafkaCluster(folder / "kafka")
    results = []
    try:
        await asyncio.to_thread(cluster.start)
        print(f"three brokers serve after {time.monotonic() - began:.1f} s", flush=True)
        print("  ".join([*_COLUMNS, "kills", "brokers", "seconds", "result"]), flush=True)
        for seed in range(options.seed, options.seed + options.storms):
            result = await storm(cluster, folder, seed=seed, load_s=options.seconds, per_second=options.rate)
            results.append(result)
            figures = {**result.row(), "kills": result.faults.get("worker_kills"), "seconds": result.seconds}
            figures["brokers"] = result.faults.get("broker_kills")
            figures["result"] = f"{len(result.differences)} differences" if result.differences else "clean"
            names = [*_COLUMNS, "kills", "brokers", "seconds", "result"]
            print("  ".join(str(figures[name]).rjust(len(name)) for name in names), flush=True)
            for line in result.differences[:20]:
                print(f"    {line}", flush=True)
    finally:
        for node in cluster.nodes.values():
            if node.pid is not None:
                node.kill()
    return results


if __name__ == "__main__":
    sys.exit(main())
