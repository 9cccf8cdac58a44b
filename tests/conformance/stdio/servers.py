"""The servers of the harness: how each is started, and which of its tools stand for which scenario."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conformance import packages

BIG = 4 << 20
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A server's command and what to call; None where it has nothing of the kind."""

    command: list[str]
    call: Call
    failing: Call
    big: Call | None = None
    steps: Call | None = None
    slow: Call | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def expected(self) -> dict[str, str]:
        """How each scenario has to end: equal bytes say nothing where nothing was said."""
        found = {"initialize": "ok", "list": "ok", "call": "ok", "failing": "error", "unknown": "error"}
        found |= {"big": "ok"} if self.big else {}
        found |= {"steps": "ok"} if self.steps else {}
        found |= {"concurrent": "ok"}
        return found | ({"cancel": "cancelled", "after": "ok"} if self.slow else {})


class _Page(BaseHTTPRequestHandler):
    body = b"<html><body>" + b"<p>one line of a large page</p>\n" * (BIG // 32) + b"</body></html>"

    def do_GET(self) -> None:
        body = self.body if self.path == "/big" else b"<html><body><p>a page</p></body></html>"
        known = self.path in {"/", "/big"}
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


def _everything(folder: Path) -> Plan:
    return Plan(
        [sys.executable, "-m", "tests.mcp_servers.everything", "--stdio"],
        call=("echo", {"text": "a line\u2028and another, ünïcode 🙂"}),
        failing=("fail", {"text": "as asked"}),
        big=("big", {"size": BIG}),
        steps=("steps", {"count": 20}),
        slow=("slow", {"seconds": 30}),
    )


def _time(folder: Path) -> Plan:
    return Plan(
        [str(packages.PYTHON), "-m", "mcp_server_time", "--local-timezone", "UTC"],
        call=("get_current_time", {"timezone": "Europe/Athens"}),
        failing=("get_current_time", {"timezone": "Nowhere/Land"}),
    )


@contextmanager
def _fetch() -> Iterator[Plan]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{pages.server_port}"
        try:
            yield Plan(
                [str(packages.PYTHON), "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"],
                call=("fetch", {"url": f"{url}/"}),
                failing=("fetch", {"url": f"{url}/missing"}),
                big=("fetch", {"url": f"{url}/big", "raw": True, "max_length": 999_999}),
            )
        finally:
            pages.shutdown()


def _git(folder: Path) -> Plan:
    where = folder / "repository"
    where.mkdir()
    (where / "large.txt").write_text("one line of a large file\n" * (BIG // 25))

    def git(*words: str) -> None:
        who = ("-c", "user.name=harness", "-c", "user.email=harness@example.org")
        subprocess.run(["git", *who, "-C", str(where), *words], check=True, capture_output=True)

    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "--message=first")
    at = {"repo_path": str(where)}
    return Plan(
        [str(packages.PYTHON), "-m", "mcp_server_git", "--repository", str(where)],
        call=("git_log", at),
        failing=("git_show", at | {"revision": "no-such-revision"}),
        big=("git_show", at | {"revision": "HEAD"}),
    )


def _npm(name: str, *parts: str) -> list[str]:
    return [str(packages.NODE), packages.module(f"@modelcontextprotocol/server-{name}", "dist", "index.js"), *parts]


def _filesystem(folder: Path) -> Plan:
    (folder / "files").mkdir()
    small, large = folder / "files" / "small.txt", folder / "files" / "large.txt"
    small.write_text("small")
    large.write_text("one line of a large file\r\n" * (BIG // 26))
    return Plan(
        _npm("filesystem", str(folder / "files")),
        call=("read_text_file", {"path": str(small)}),
        failing=("read_text_file", {"path": "/outside"}),
        big=("read_text_file", {"path": str(large)}),
    )


def _memory(folder: Path) -> Plan:
    entity = {"name": "large", "entityType": "thing", "observations": ["x" * BIG]}
    return Plan(
        _npm("memory"),
        call=("search_nodes", {"query": "nothing"}),
        failing=("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
        big=("create_entities", {"entities": [entity]}),
        environment={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
    )


def _npm_everything(folder: Path) -> Plan:
    return Plan(
        _npm("everything", "stdio"),
        call=("echo", {"message": "a line\u2028and another, ünïcode 🙂"}),
        failing=("get-sum", {"a": "no", "b": "numbers"}),
        big=("echo", {"message": "x" * BIG}),
        steps=("trigger-long-running-operation", {"duration": 0.5, "steps": 10}),
        slow=("trigger-long-running-operation", {"duration": 20, "steps": 20}),
    )


@contextmanager
def planned(name: str, folder: Path) -> Iterator[Plan]:
    """The plan for a server, with what it needs in an empty folder; what runs beside it ends with the context."""
    if name == "fetch":
        with _fetch() as plan:
            yield plan
    else:
        yield _MAKERS[name](folder)


_MAKERS: dict[str, Callable[[Path], Plan]] = {
    "ours": _everything,
    "time": _time,
    "git": _git,
    "filesystem": _filesystem,
    "memory": _memory,
    "everything": _npm_everything,
}
SERVERS = (*_MAKERS, "fetch")
