"""The observer process of a proxy: `python -m services.mcp_proxy.observe FD [--sink jsonl:FILE] [--timeout-ms N]`.

FD is the reading end of the tap. The process ends by itself once the tap has ended: what is left goes to the collector
within 3 s, else into the spool; exit code 0. What it has to say goes to standard error, which is the proxy's log file.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys

from services.mcp_proxy.inbox import Inbox


def main(argv: list[str] | None = None) -> int:
    """Follow the tap to its end."""
    parser = argparse.ArgumentParser(prog="python -m services.mcp_proxy.observe", description=__doc__)
    parser.add_argument("fd", type=int)
    parser.add_argument("--sink")
    parser.add_argument("--timeout-ms", type=int)
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(argv)
    inbox = Inbox(socket.socket(fileno=given.fd))
    logging.basicConfig(
        level=logging.ERROR if given.quiet else logging.WARNING,
        format="%(asctime)s %(levelname)s proxy %(process)d: %(message)s",
        stream=sys.stderr,
    )
    # Takes about a second, during which the thread reads.
    from services.mcp_proxy.watch import watch

    asyncio.run(watch(inbox, sink=given.sink, timeout_ms=given.timeout_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
