"""`agenttrace proxy tail`: what a person sees of running proxies and of a file."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from services.cli.proxy_tail import tail
from services.mcp_proxy.live import Live

from .parts import ROOT, Json, calls, environment, event, until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-c", "from services.cli.proxy_tail import tail; tail()"]


def asked(**fields: Any) -> Json:
    return event("mcp.rpc.request", 7, operation_id="5f2b7b52-6c4e-4d0e-9d0a-0a4b1c8f1c11", **fields)


def answered(name: str = "mcp.rpc.response", **fields: Any) -> Json:
    return event(name, 7, operation_id="5f2b7b52-6c4e-4d0e-9d0a-0a4b1c8f1c11", **fields)


STORY = [
    event("mcp.server.health_changed", 0, health="up", reason="initialized", transport="stdio"),
    event("mcp.tools.listed", 0, transport="stdio", count=12),
    asked(request={"size_bytes": 118}),
    event("mcp.rpc.notification", 0, method="notifications/progress", status="completed"),
    answered(
        duration_ms=1240.4,
        duration_server_ms=40.4,
        duration_human_ms=1200.0,
        response={"size_bytes": 2048},
    ),
    *calls(1, first=8),
    event("mcp.rpc.request", 9, tool_name="write"),
    event(
        "mcp.rpc.error",
        9,
        tool_name="write",
        status="error",
        protocol_error={"code": -32602, "message_summary": "no such \x1b[2Jfile"},
        duration_ms=3.14,
    ),
    event(
        "mcp.rpc.response", 10, tool_name="read", is_error_result=True, response={"size_bytes": 9, "summary": "gone"}
    ),
    event("mcp.rpc.error", 11, method="resources/list", tool_name=None, status="timeout", mcp_server="other"),
    event("mcp.server.stderr", 0, transport="stdio", content={"size_bytes": 4, "summary": "warning: old\nversion"}),
    event("mcp.rpc.invalid_frame", 0, method=None, jsonrpc_id=None, jsonrpc_id_type=None, status="error"),
    event("mcp.elicitation.requested", 0, mode="form", content={"size_bytes": 3, "summary": "Sure?"}),
    event("mcp.elicitation.completed", 0, action="accept"),
    {"event_name": "tool.call.started", "event_id": "x"},
    {"event_name": "producer.dropped", "count": 3, "reason": "proxy_queue_full", "event_id": "y"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in STORY) + b'not json\n{"half')
    return path


def run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(tail, ["--file", str(file), "--no-follow", *arguments], catch_exceptions=False)


def shown(file: Path, *arguments: str) -> list[str]:
    return [line[14:] for line in run(file, *arguments).stdout.splitlines()]


def test_every_operation_is_one_line(file: Path) -> None:
    lines = [" ".join(line.split()) for line in shown(file)]
    assert lines == [
        "files server up initialized",
        "files tools listed 12 tools",
        "files tools/call read ok 1,240 ms 118 B → 2.0 KiB id 7 5f2b7b52 40.4 ms server, 1,200 ms person",
        "files tools/call read ok - 5 B → 5 B id 8 c-1|8",
        r"files tools/call write error 3.1 ms 5 B → 5 B id 9 c-1|9 -32602 no such \x1b[2Jfile",
        "files tools/call read error - - → 9 B id 10 c-1|10 gone",
        "other resources/list timeout - - → 5 B id 11 c-1|11",
        "files stderr warning: old version",
        "files not JSON-RPC 5 B text 0",
        "files asks a person Sure?",
        "files person answered accept",
        "- events lost 3 (proxy_queue_full)",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--status", "error"), ["write", "read"]),
        (("--status", "timeout"), ["resources/list"]),
        (("--tool", "writ"), ["write"]),
        (("--server", "othe"), ["resources/list"]),
        (("--method", "notifications/"), ["notifications/progress"]),
        (("--method", "tools/call", "--status", "ok"), ["read", "read"]),
    ],
)
def test_filters(file: Path, arguments: tuple[str, ...], expected: list[str]) -> None:
    lines = shown(file, *arguments)
    assert len(lines) == len(expected)
    assert all(word in line for word, line in zip(expected, lines, strict=True))


def test_json_is_whole_events_with_their_requests(file: Path) -> None:
    found = [orjson.loads(line) for line in run(file, "--json", "--tool", "write").stdout.splitlines()]
    assert found == [given for given in STORY if given.get("tool_name") == "write"]


def test_errors_are_for_a_person(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "--no-follow needs --file" in runner.invoke(tail, ["--no-follow"]).output
    result = runner.invoke(tail, ["--no-follow", "--file", str(tmp_path / "none")])
    assert "does not exist" in str(result.exception)


class Tail:
    """`proxy tail` as a process; what it printed so far."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._files = [home / "tail.out", home / "tail.err"]
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            env = {**environment(home), "PYTHONUNBUFFERED": "1"}
            self.process = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, env=env, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        return self._files[1].read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)


async def test_it_attaches_to_running_proxies_and_to_new_ones(tmp_path: Path) -> None:
    looking = Tail(tmp_path)
    try:
        await until(lambda: "no proxy is running" in looking.err, "it says that there is none")
        assert "agenttrace proxy stdio --server NAME" in looking.err
        proxy = Live(tmp_path)
        await proxy.start()
        await until(lambda: proxy._readers, "attached")
        proxy.put(calls(2))
        await until(lambda: looking.out.count("tools/call read") == 2, "two lines")
        # As one that starts later, under the name of a process that lives.
        other = Live(tmp_path)
        other.path = proxy.path.with_name(f"{os.getppid()}.sock")
        await other.start()
        await until(lambda: other._readers, "attached to the second")
        other.put(calls(1, first=5))
        await until(lambda: looking.out.count("tools/call read") == 3, "a third line")
        await proxy.close()
        await until(lambda: f"proxy {os.getpid()}: ended" in looking.err, "it says that one ended")
        other.put(calls(1, first=6))
        await until(lambda: looking.out.count("tools/call read") == 4, "a fourth line")
        await other.close()
    finally:
        looking.stop()
    assert "\x1b" not in looking.out
    assert "Traceback" not in looking.err


async def test_it_follows_a_file_that_grows_and_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    looking = Tail(tmp_path, "--file", str(path))
    try:
        path.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in calls(3)))
        await until(lambda: looking.out.count("\n") == 3, "three lines")
        first, second = calls(1, first=3)
        with path.open("ab") as more:
            more.write(orjson.dumps(first) + b"\n" + orjson.dumps(second)[:40])
        with path.open("ab") as more:
            more.write(orjson.dumps(second)[40:] + b"\n")
        await until(lambda: looking.out.count("\n") == 4, "a fourth")
        path.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in calls(1, first=4)))
        await until(lambda: looking.out.count("\n") == 5, "a fifth, of the new file")
    finally:
        looking.stop()
    assert "Traceback" not in looking.err


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(b"".join(orjson.dumps(found) + b"\n" for found in calls(5000)))
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -c '{COMMAND[2]}' --no-follow --file '{path}' | head -n 1"],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_on_a_terminal_there_is_a_header_and_colour(file: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    env = {**environment(tmp_path), "TERM": "xterm-256color"}
    arguments = ["--file", str(file), "--no-follow"]
    process = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, env=env, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(master)
    assert process.wait(20) == 0
    text = seen.decode()
    assert "operation" in text
    assert "\x1b[31m" in text
    assert "\x1b[2Jfile" not in text
