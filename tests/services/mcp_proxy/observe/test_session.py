"""One traced session through a real proxy: whatever a call's way (rounds of input, a task, a question to a person, a
cancellation), it is one operation in the tail and in ClickHouse, with server and human time apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from clickhouse_connect.driver import Client

from tests.services.clickhouse_sink.conftest import Written, client, rows, tables, write

from .parts import Json, request, until

pytestmark = pytest.mark.integration

__all__ = ["client", "rows", "tables", "write"]

PERSON_S = 3.0
TRACE = "0af7651916cd43dd8448eb211c80319c"

SERVER = r"""
import json, sys, time
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
text = [{"type": "text", "text": "done"}]
for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        say(id=number, result={"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}})
    elif method == "tools/call" and params["name"] == "rounds":
        time.sleep(0.05)
        if "requestState" in params:
            say(id=number, result={"resultType": "complete", "content": text})
        else:
            asked = {"a": {"method": "elicitation/create", "params": {"message": "Which one?"}}}
            say(id=number, result={"resultType": "input_required", "requestState": "s-1", "inputRequests": asked})
    elif method == "tools/call" and params["name"] == "task":
        say(id=number, result={"task": {"taskId": "t-1", "status": "working", "ttl": 60000, "pollInterval": 50}})
    elif method == "tasks/get":
        say(id=number, result={"taskId": "t-1", "status": "working" if number == 11 else "completed", "ttl": 60000})
    elif method == "tasks/result":
        say(id=number, result={"content": text})
    elif method == "tools/call" and params["name"] == "ask":
        waiting = number
        say(id="q-1", method="elicitation/create", params={"message": "Sure?", "requestedSchema": {"type": "object"}})
    elif number == "q-1":
        time.sleep(0.05)
        say(id=waiting, result={"content": text})
"""


def _converse(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin and process.stdout

    def say(message: Json) -> None:
        process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

    def ask(message: Json) -> Json:
        say(message)
        answer: Json = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return answer

    traced = {"_meta": {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}}

    def call(number: int, tool: str, **more: object) -> Json:
        return request(number, "tools/call", {"name": tool, "arguments": {"a": 1}, **traced, **more})

    ask(request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}))
    first = ask(call(1, "rounds"))["result"]
    time.sleep(0.2)
    ask(call(2, "rounds", requestState=first["requestState"], inputResponses={"a": {"action": "accept"}}))
    ask(call(10, "task", task={"ttl": 60000}))
    ask(request(11, "tasks/get", {"taskId": "t-1"}))
    ask(request(12, "tasks/get", {"taskId": "t-1"}))
    ask(request(13, "tasks/result", {"taskId": "t-1"}))
    question = ask(call(20, "ask"))
    time.sleep(PERSON_S)
    ask({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}})
    say(call(30, "never"))
    say(
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": 30, "reason": "changed my mind"},
        }
    )
    process.stdin.close()
    process.wait(10)


async def test_each_call_of_a_traced_session_is_one_operation(tmp_path: Path, write: Written, client: Client) -> None:
    path, program = tmp_path / "events.jsonl", str(Path(sys.executable).parent / "agenttrace")
    env = os.environ | {"AGENTTRACE_HOME": str(tmp_path)}
    command = [program, "proxy", "stdio", "--server", "s", "--sink", f"jsonl:{path}"]
    command += ["--", sys.executable, "-c", SERVER]
    _converse(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))  # noqa: ASYNC220
    await until(lambda: path.exists() and b'"health":"down"' in path.read_bytes(), "the end of the session")

    words = [program, "proxy", "tail", "--file", str(path), "--no-follow", "--method", "tools/call"]
    done = subprocess.run(words, env=env, capture_output=True, check=True, text=True)  # noqa: ASYNC221
    lines = done.stdout.splitlines()
    shown = {
        tool: [line for line in lines if f"tools/call {tool} " in line] for tool in ("rounds", "task", "ask", "never")
    }
    assert {tool: len(found) for tool, found in shown.items()} == {"rounds": 1, "task": 1, "ask": 1, "never": 1}, lines
    assert "cancelled" in shown["never"][0]

    sent = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    await write(sent)
    assert not write.refused
    found = client.query(
        "SELECT tool_name, status, failed, duration_ms, duration_server_ms, duration_human_ms, jsonrpc_ids, trace_id"
        " FROM mcp_rpc_calls WHERE tool_name != '' ORDER BY tool_name"
    ).result_rows
    by_tool = {row[0]: row[1:] for row in found}
    assert len(found) == 4
    assert {tool: (status, ids) for tool, (status, _, _, _, _, ids, _) in by_tool.items()} == {
        "ask": ("completed", ["20"]),
        "never": ("cancelled", ["30"]),
        "rounds": ("completed", ["1", "2"]),
        "task": ("completed", ["10", "11", "12", "13"]),
    }
    assert {row[-1] for row in by_tool.values()} == {TRACE}
    _, _, whole, server, human, _, _ = by_tool["ask"]
    assert human >= PERSON_S * 1000 and 40 <= server < 1000
    assert whole == pytest.approx(server + human, abs=5)
    _, _, whole, server, human, _, _ = by_tool["rounds"]
    assert 190 <= human < 1000 and 90 <= server < 1000
    assert whole == pytest.approx(server + human, abs=5)
    _, _, whole, server, human, _, _ = by_tool["task"]
    assert (human or 0) == 0 and 0 < server <= whole
