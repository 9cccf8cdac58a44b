"""Real clients and real servers over standard input and output, `agenttrace proxy stdio` between them.

    python -m tests.conformance.stdio [--clients sdk,typescript1] [--servers ours,git]

A shim on each side of the proxy writes down what passes, both directions, standard error and the exit status. 0 may differ.
The exit code is 1 if something does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from schemas.errors import UserError
from tests.conformance import packages
from tests.conformance.running import ROOT
from tests.conformance.stdio.pairs import CLIENTS, compare
from tests.conformance.stdio.servers import SERVERS

OUT = ROOT / ".agenttrace" / "conformance" / "stdio.json"


def main() -> None:
    """Run the pairs asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default=",".join(CLIENTS), help="names with commas between them")
    parser.add_argument("--servers", default=",".join(SERVERS), help="names with commas between them")
    args = parser.parse_args()
    clients, servers = args.clients.split(","), args.servers.split(",")
    for name, known in [(name, CLIENTS) for name in clients] + [(name, SERVERS) for name in servers]:
        if name not in known:
            parser.error(f"'{name}' is none of {', '.join(known)}")
    try:
        packages.node_packages()
        packages.python_packages()
    except UserError as error:
        sys.exit(f"conformance: {error}")
    found = {}
    for client in clients:
        for server in servers:
            with tempfile.TemporaryDirectory(prefix="agenttrace-stdio-") as folder:
                pair = compare(client, server, Path(folder))
            found[f"{client} {server}"] = asdict(pair)
            print(
                f"{client:<12} {server:<11} {pair.scenarios:>2} scenarios {pair.bytes:>11,} bytes  "
                f"differing {len(pair.differing)}   ({pair.events} events observed)",
                flush=True,
            )
            for line in pair.differing:
                print(f"  {line}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if any(pair["differing"] for pair in found.values()) else 0)


if __name__ == "__main__":
    main()
