"""A secret in any place of the traffic is in no event."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.observer.driving import Http, Json, Stdio, error, message, request, result

pytestmark = pytest.mark.unit

AWS = "AKIAIOSFODNN7EXAMPLE"
GITHUB = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
PEM = ["-----BEGIN RSA PRIVATE KEY-----", *(f"MIIEpAIBAAKCAQEA{'testkey' * 6}{n:04}" for n in range(6))]
PEM.append("-----END RSA PRIVATE KEY-----")


def initialize(drive: Stdio, s: str) -> None:
    drive.client(message("initialize", 0, params={"protocolVersion": s, "clientInfo": {"name": s, "version": s}}))
    drive.server(message(id=0, result={"protocolVersion": s, "serverInfo": {"name": s, "version": s}}))


def elicitation(drive: Stdio, s: str) -> None:
    drive.client(request(1))
    asked = {"method": "elicitation/create", "params": {"message": s, "mode": s, "url": f"https://x/?token={s}"}}
    drive.server(message(id=1, **asked))
    drive.client(message(id=1, result={"action": s, "content": {"password": s}}))
    drive.server(message(id=1, result={"resultType": "input_required", "requestState": s, "inputRequests": {s: asked}}))
    drive.client(request(2, requestState=s, inputResponses={s: {"action": "accept", "content": {s: s}}}))


def task(drive: Stdio, s: str) -> None:
    drive.client(request(1))
    drive.server(message(id=1, result={"resultType": "task", "taskId": s, "status": "working"}))
    drive.client(message("tasks/get", 2, params={"taskId": s}))
    drive.server(
        message(
            id=2,
            result={"taskId": s, "status": "failed", "statusMessage": s, "error": {"code": 1, "message": f"key {s}"}},
        )
    )


def progress(drive: Stdio, s: str) -> None:
    drive.client(request(1, _meta={"progressToken": s, "traceparent": s}))
    drive.server(message("notifications/progress", params={"progressToken": s, "message": s}))


def tools(drive: Stdio, s: str) -> None:
    drive.client(message("tools/list", 1, params={"cursor": s}))
    drive.server(message(id=1, result={"tools": [{"name": s, "description": s}], "nextCursor": s}))


HEADERS = (
    *(f"x-agenttrace-{name}-id" for name in ("run", "trace", "session")),
    *("traceparent", "mcp-protocol-version", "last-event-id", "user-agent", "mcp-name", "mcp-param-key"),
)
PLACES: dict[str, Callable[[Stdio, str], Any]] = {
    "argument": lambda d, s: d.client(request(1, arguments={"key": s, "cmd": f"curl -H 'Authorization: Bearer {s}' x.io"})),
    "argument name": lambda d, s: d.client(request(1, arguments={s: 1})),
    "tool name": lambda d, s: d.client(request(1, name=s)),
    "method": lambda d, s: d.client(message(s, 1)),
    "uri": lambda d, s: d.client(message("resources/read", 1, params={"uri": f"https://u:{s}@host/x?api_key={s}"})),
    "id": lambda d, s: (d.client(request(s)), d.server(result(s))),
    "result": lambda d, s: (d.client(request(1)), d.server(result(1, content=[{"type": "text", "text": f"x {s} y"}]))),
    "unasked result": lambda d, s: d.server(result(1, x=s)),
    "error": lambda d, s: (d.client(request(1)), d.server(error(1, text=f"bad key {s}"))),
    "notification": lambda d, s: d.server(message("notifications/message", params={"data": f"login with {s}"})),
    "cancel": lambda d, s: d.client(message("notifications/cancelled", params={"requestId": s, "reason": s})),
    "token": progress,
    "meta": lambda d, s: d.client(request(1, _meta={"io.modelcontextprotocol/protocolVersion": s, "x-agenttrace-run-id": s})),
    "tools": tools,
    "banner": lambda d, s: d.server(f"starting with {s}\n".encode()),
    "garbage": lambda d, s: d.client(f'{{"jsonrpc":"2.0","key":"{s}"}}\n'.encode(), f"{{{s}\n".encode()),
    "stderr": lambda d, s: [d.put(Kind.STDERR, 1, Side.SERVER, part.encode()) for part in ("k=", s[:9], s[9:], "\n")],
    "large": lambda d, s: (d.client(request(1, arguments={"x": "y " * 700_000 + s})), d.server(result(1, x=f"{s} " + "y" * 1_200_000))),
    "initialize": initialize,
    "elicitation": elicitation,
    "task": task,
}  # fmt: skip


@pytest.mark.parametrize("secret", [AWS, GITHUB])
@pytest.mark.parametrize("place", PLACES)
def test_stdio(place: str, secret: str) -> None:
    drive = Stdio()
    PLACES[place](drive, secret)
    drive.exit(code=0)
    assert len(drive.events) > 2
    assert secret not in json.dumps(drive.events)


@pytest.mark.parametrize("secret", [AWS, GITHUB])
def test_http(secret: str) -> None:
    drive = Http(server=secret)
    headers: Json = dict.fromkeys(HEADERS, secret)
    channel = drive.open(request(1), headers=headers, session=secret)
    drive.head(channel, kind="text/event-stream", mcp_session_id=secret)
    drive.event(channel, message("ping", 1), id=secret)
    drive.body(channel, f"event: {secret}\nretry: {secret}\n: {secret}\n\n".encode())
    drive.done(channel, secret)
    channel = drive.open(request(2), session=secret)
    drive.head(channel, 500, "text/html", content_encoding="gzip")
    drive.body(channel, gzip.compress(f"<p>{secret}</p>".encode()))
    drive.done(channel)
    assert len(drive.rpc()) > 3
    assert secret not in json.dumps(drive.events)


@pytest.mark.parametrize("way", ["stdout", "stderr", "stderr slowly"])
def test_a_private_key_that_is_printed_line_by_line(way: str) -> None:
    drive = Stdio()
    for line in ["before", *PEM, "after"]:
        if way == "stdout":
            drive.server(f"{line}\n".encode())
        else:
            drive.put(Kind.STDERR, 1, Side.SERVER, f"{line}\n".encode())
            drive.tick(3000 if way == "stderr slowly" else 0)
    drive.exit(code=1)
    told = json.dumps(drive.events)
    assert "testkeytest" not in told
    assert "before" in told
    assert "after" in told
