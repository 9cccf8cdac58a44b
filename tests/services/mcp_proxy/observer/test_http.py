"""HTTP exchanges: JSON and streams, sessions and none, resumption, status codes, the older transport, what breaks off."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from services.mcp_proxy.observer.connection import RESUME_NS
from services.mcp_proxy.observer.hub import IDLE_NS, MAX_SESSIONS
from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.observer.driving import MS, Http, Json, error, message, request, result

pytestmark = pytest.mark.unit

V2026 = {"mcp-protocol-version": "2026-07-28"}


def ends(drive: Any) -> list[Json]:
    return drive.named("mcp.rpc.response", "mcp.rpc.error")


def status(drive: Any) -> list[tuple[str, str | None]]:
    return [(event["status"], event.get("reason")) for event in ends(drive)]


def test_a_json_answer() -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.sleep(3)
    drive.head(channel)
    drive.sleep(2)
    drive.body(channel, result(1))
    drive.done(channel)
    asked, answered = drive.rpc()
    assert (answered["status"], answered["duration_ms"], answered["http"]) == ("completed", 5, {"status": 200})
    assert (asked["transport"], asked["mcp_server"]) == ("streamable-http", "github")
    assert asked["operation_id"] == answered["operation_id"]


def test_a_stream_gives_each_message_when_it_comes() -> None:
    drive = Http()
    channel = drive.stream(request(1, _meta={"progressToken": "p"}), session="s")
    drive.event(channel, message("notifications/progress", params={"progressToken": "p", "progress": 1}))
    drive.event(channel, message("roots/list", 1))
    drive.json(message(id=1, result={"roots": []}), None, status=202, session="s")
    drive.event(channel, result(1))
    assert [e["event_name"].rsplit(".")[-1] for e in drive.rpc()] == [
        "request",
        "notification",
        "request",
        "response",
        "response",
    ]
    roots, call = ends(drive)
    assert (roots["method"], roots["direction"], roots["parent_operation_id"]) == (
        "roots/list",
        "client_to_server",
        call["operation_id"],
    )
    assert call["progress_count"] == 1
    drive.done(channel)
    assert status(drive) == [("completed", None)] * 2


def test_a_session_begins_with_the_answer_to_initialize() -> None:
    drive = Http()
    hello = message("initialize", 0, params={"protocolVersion": "2025-06-18", "clientInfo": {"name": "x"}})
    drive.json(hello, message(id=0, result={"protocolVersion": "2025-06-18"}), mcp_session_id="secret-session")
    drive.json(message("notifications/initialized"), None, status=202, session="secret-session")
    drive.json(request(1), result(1), session="secret-session")
    assert len({e["connection_id"] for e in drive.rpc()}) == 1
    assert len({e["http"]["mcp_session_hash"] for e in ends(drive)}) == 1
    assert "secret-session" not in json.dumps(drive.events)
    assert [e["protocol_version"] for e in drive.rpc()][-1] == "2025-06-18"


def test_an_initialize_without_an_answer_is_told_after_a_while() -> None:
    drive = Http()
    drive.open(message("initialize", 0, params={}))
    assert drive.rpc() == []
    drive.tick(6000)
    assert [e["method"] for e in drive.rpc()] == ["initialize"]


def test_connections_differ_by_session_and_ids_without_one_by_exchange() -> None:
    drive = Http()
    drive.json(request(1), result(1), session="a")
    drive.json(request(1), result(1), session="b")
    one, two = drive.open(request(7, name="one")), drive.open(request(7, name="two"))
    for channel in (two, one):
        drive.head(channel)
        drive.body(channel, result(7))
        drive.done(channel)
    connections = [e["connection_id"] for e in ends(drive)]
    assert len(set(connections[:2])) == 2
    assert connections[2] == connections[3]
    assert [e["tool_name"] for e in ends(drive)[2:]] == ["two", "one"]
    assert all(e["status"] == "completed" for e in ends(drive))


def test_a_batch_over_one_exchange() -> None:
    drive = Http()
    drive.json([request(1), request(2), message("notifications/initialized")], [result(2), error(1)], session="s")
    assert [(e["jsonrpc_id"], e["status"]) for e in ends(drive)] == [("2", "completed"), ("1", "error")]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_packed_answers_are_read(coding: str) -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.head(channel, content_encoding=coding)
    packed = gzip.compress(json.dumps(result(1)).encode())
    for at in range(0, len(packed), 7):
        drive.body(channel, packed[at : at + 7])
    drive.done(channel)
    assert status(drive) == [("completed", None)]
    stream = drive.open(request(2))
    drive.head(stream, kind="text/event-stream", content_encoding="gzip")
    drive.body(stream, gzip.compress(b"data: " + json.dumps(result(2)).encode() + b"\n\n"))
    drive.done(stream)
    assert status(drive) == [("completed", None)] * 2


def test_a_coding_that_is_not_known_leaves_size_and_hash() -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.head(channel, content_encoding="br")
    drive.body(channel, b"\x0b\x02\x80")
    drive.body(channel, b"more")
    drive.done(channel)
    (end,) = ends(drive)
    assert (end["status"], end["reason"], end["response"]["size_bytes"]) == ("completed", "unread_coding", 7)
    assert end["event_name"] == "mcp.rpc.response"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 413, 429, 500, 502, 503])
def test_an_error_of_http_ends_the_request_with_its_status(code: int) -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.head(channel, code, "text/html")
    drive.body(channel, b"<h1>no token=ghp_0123456789abcdefghijABCDEFGHIJ012345</h1>")
    drive.done(channel)
    (end,) = ends(drive)
    assert (end["event_name"], end["status"], end["reason"]) == ("mcp.rpc.error", "error", f"http_{code}")
    assert (end["http"]["status"], end["response"]["size_bytes"]) == (code, 58)
    assert "ghp_" not in json.dumps(drive.events)


@pytest.mark.parametrize("id", [1, None])
def test_a_json_rpc_error_with_a_status_is_both(id: Any) -> None:
    drive = Http()
    drive.json(request(1), error(id, -32022, "unsupported version"), status=400)
    (end,) = ends(drive)
    assert (end["status"], end["protocol_error"]["code"], end["http"]["status"]) == ("error", -32022, 400)
    assert end["operation_id"] == drive.rpc()[0]["operation_id"]


def test_a_dead_session_ends_what_is_open_in_it() -> None:
    drive = Http()
    drive.stream(request(1), session="s")
    drive.json(request(2), {"error": "gone"}, status=404, session="s")
    drive.json(request(3), result(3), session="s")
    assert [(e["jsonrpc_id"], e["status"], e.get("reason")) for e in ends(drive)] == [
        ("2", "error", "session_not_found"),
        ("1", "error", "session_not_found"),
        ("3", "completed", None),
    ]


def test_a_session_that_is_deleted() -> None:
    drive = Http()
    drive.stream(request(1), session="s")
    channel = drive.open(method="DELETE", session="s")
    drive.head(channel, 204)
    drive.done(channel)
    assert status(drive) == [("cancelled", "session_deleted")]


def test_server_requests_and_notifications_on_a_get_stream() -> None:
    drive = Http()
    get = drive.stream(method="GET", session="s")
    drive.event(get, message("notifications/tools/list_changed"))
    drive.event(get, message("sampling/createMessage", 1, params={}))
    drive.json(message(id=1, result={"role": "assistant"}), None, status=202, session="s")
    drive.done(get, "client")
    assert [(e["method"], e["direction"]) for e in drive.rpc()] == [
        ("notifications/tools/list_changed", "server_to_client"),
        ("sampling/createMessage", "server_to_client"),
        ("sampling/createMessage", "client_to_server"),
    ]
    assert ends(drive)[0]["status"] == "completed"


def test_a_get_that_the_server_does_not_offer_is_no_event() -> None:
    drive = Http()
    channel = drive.open(method="GET", session="s")
    drive.head(channel, 405)
    drive.done(channel)
    assert drive.rpc() == []


@pytest.mark.parametrize(
    ("reason", "headers", "expected"),
    [
        ("upstream", {}, ("stream_aborted", "closed_by_upstream")),
        ("client", {}, ("stream_aborted", "closed_by_client")),
        ("client", V2026, ("cancelled", "closed_by_client")),
        ("timeout", V2026, ("stream_aborted", "closed_by_timeout")),
    ],
)
def test_a_stream_that_breaks_off(reason: str, headers: Json, expected: tuple[str, str]) -> None:
    drive = Http()
    channel = drive.stream(request(1), headers=headers)
    drive.done(channel, reason)
    assert status(drive) == [expected]


def test_a_stream_that_ends_without_the_answer() -> None:
    drive = Http()
    channel = drive.stream(request(1))
    drive.done(channel)
    drive.json(request(2), {"jsonrpc": "2.0", "id": 9, "result": {}})
    assert status(drive) == [("stream_aborted", "no_answer"), ("completed", "unmatched"), ("error", "no_answer")]


@pytest.mark.parametrize("reason", ["upstream", "client", "done"])
def test_a_stream_with_ids_may_be_resumed(reason: str) -> None:
    drive = Http()
    channel = drive.stream(request(1), session="s")
    drive.body(channel, b"id: e-1\nretry: 100\ndata:\n\n")
    drive.done(channel, reason)
    assert ends(drive) == []
    again = drive.stream(method="GET", session="s", headers={"last-event-id": "e-1"})
    drive.done(again, "upstream")
    assert status(drive) == []
    again = drive.stream(method="GET", session="s", headers={"last-event-id": "e-1"})
    drive.sleep(100)
    drive.event(again, result(1), id="e-2")
    drive.done(again)
    assert status(drive) == [("completed", None)]
    assert ends(drive)[0]["duration_ms"] == 100


def test_what_is_sent_again_on_resumption_is_told_once() -> None:
    drive = Http()
    channel = drive.stream([request(1), request(2)], session="s")
    for n in (1, 2):
        drive.event(channel, message("notifications/message", params={"n": n}), id=f"e-{n}")
    drive.event(channel, result(1), id="e-3")
    drive.done(channel, "upstream")
    again = drive.stream(method="GET", session="s", headers={"last-event-id": "e-1"})
    drive.event(again, message("notifications/message", params={"n": 2}), id="e-2")
    drive.event(again, result(1), id="e-3")
    drive.event(again, result(2), id="e-4")
    assert len(drive.named("mcp.rpc.notification")) == 2
    assert status(drive) == [("completed", None)] * 2


def test_a_stream_is_not_resumed_by_another_session_or_another_id() -> None:
    drive = Http()
    channel = drive.stream(request(1), session="s")
    drive.event(channel, message("notifications/message", params={}), id="e-1")
    drive.done(channel, "upstream")
    for session, last in (("other", "e-1"), ("s", "e-9")):
        get = drive.stream(method="GET", session=session, headers={"last-event-id": last})
        drive.event(get, result(1) if session == "other" else message("ping", 5))
        drive.done(get, "client")
    assert ("completed", "unmatched") in status(drive)
    drive.tick(RESUME_NS / MS)
    assert status(drive)[-1] == ("stream_aborted", "not_resumed")


def test_a_result_that_comes_on_another_stream_of_the_session_is_its_answer() -> None:
    drive = Http()
    post = drive.stream(request(1), session="s")
    get = drive.stream(method="GET", session="s")
    drive.event(get, result(1))
    drive.done(post, "upstream")
    assert status(drive) == [("completed", None)]


def test_no_connection_to_the_server() -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.done(channel, "connect")
    assert status(drive) == [("error", "connect")]
    health = drive.named("mcp.server.health_changed")
    assert [(e["health"], e["reason"]) for e in health] == [("connecting", "started"), ("down", "connect")]
    drive.json(request(2), result(2))
    assert drive.named("mcp.server.health_changed")[-1]["health"] == "up"


def test_a_result_after_the_time_out_is_late() -> None:
    drive = Http(timeout_ms=1000)
    channel = drive.stream(request(1))
    drive.tick(1500)
    drive.event(channel, result(1))
    drive.done(channel)
    assert status(drive) == [("timeout", "timeout"), ("late", "after_timeout")]


def test_headers_say_whose_trace_it_is_and_meta_says_it_better() -> None:
    drive = Http()
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "x-agenttrace-run-id": "run-1"}
    drive.open(request(1), headers=headers)
    drive.open(request(2, _meta={"traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}), headers=headers)
    drive.open(request(3), headers={"x-agenttrace-trace-id": "e" * 32, "x-agenttrace-session-id": "sess"})
    drive.open(request(4), headers={"traceparent": f"00-{'0' * 32}-{'b' * 16}-01", "x-agenttrace-trace-id": "x"})
    assert [(e.get("trace_id"), e.get("parent_span_id"), e.get("run_id")) for e in drive.rpc()] == [
        ("a" * 32, "b" * 16, "run-1"),
        ("c" * 32, "d" * 16, "run-1"),
        ("e" * 32, None, None),
        (None, None, None),
    ]
    assert drive.rpc()[2]["session_id"] == "sess"


def test_the_older_transport_answers_on_its_stream() -> None:
    drive = Http()
    get = drive.stream(method="GET")
    drive.body(get, b"event: endpoint\ndata: /messages?sessionId=abc\n\n")
    post = drive.open(request(1), stream=get)
    drive.head(post, 202, "text/plain")
    drive.body(post, b"Accepted")
    drive.done(post)
    assert ends(drive) == []
    drive.event(get, message("roots/list", 1))
    post = drive.open(message(id=1, result={"roots": []}), stream=get)
    drive.head(post, 202)
    drive.done(post)
    drive.event(get, result(1))
    open_still = drive.open(request(2), stream=get)
    drive.head(open_still, 202)
    drive.done(open_still)
    drive.done(get, "upstream")
    assert [(e["method"], e["status"]) for e in ends(drive)] == [
        ("roots/list", "completed"),
        ("tools/call", "completed"),
        ("tools/call", "stream_aborted"),
    ]
    assert {(e["transport"], e["connection_id"]) for e in drive.rpc()} == {("sse", drive.rpc()[0]["connection_id"])}


def test_what_is_no_mcp_is_not_looked_at() -> None:
    drive = Http()
    channel = drive.open(
        b"grant_type=refresh_token&refresh_token=s3cr3t", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    drive.head(channel, 400)
    drive.body(channel, {"access_token": "s3cr3t"})
    drive.done(channel)
    channel = drive.open(method="GET", headers={"accept": "application/json"})
    drive.head(channel)
    drive.body(channel, {"issuer": "x"})
    drive.done(channel)
    assert drive.rpc() == []
    assert drive.json(b"not json", None, status=202)
    assert [e["event_name"] for e in drive.rpc()] == ["mcp.rpc.invalid_frame"]


def test_a_body_that_breaks_off_is_no_message() -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.head(channel)
    drive.body(channel, b'{"jsonrpc":"2.0","id":1,"res')
    drive.done(channel, "upstream")
    (end,) = ends(drive)
    assert (end["status"], end["reason"], end["response"]["size_bytes"]) == ("stream_aborted", "closed_by_upstream", 28)


def test_an_answer_before_the_request_was_read() -> None:
    drive = Http()
    drive.put(Kind.OPEN, 9, data={"server": "s", "transport": "streamable-http", "http": {"method": "POST"}})
    drive.put(Kind.DATA, 9, Side.CLIENT, b'{"jsonrpc":"2.0","id":1,')
    drive.put(Kind.HEAD, 9, Side.SERVER, {"status": 413, "headers": {}})
    drive.put(Kind.END, 9, Side.SERVER)
    drive.put(Kind.CLOSE, 9, data={"reason": "done"})
    assert [e["reason"] for e in drive.rpc()] == ["unfinished"]


def test_interim_heads_are_passed_over() -> None:
    drive = Http()
    channel = drive.open(request(1))
    drive.head(channel, 100)
    drive.head(channel, 103)
    drive.head(channel, 200)
    drive.body(channel, result(1))
    drive.done(channel)
    assert ends(drive)[0]["http"]["status"] == 200


def test_missing_bytes_of_an_exchange() -> None:
    drive = Http()
    channel = drive.stream(request(1))
    drive.body(channel, b"data: {")
    drive.put(Kind.GAP, channel, Side.SERVER, {"bytes": 100})
    drive.event(channel, message("notifications/message", params={}))
    drive.done(channel)
    assert status(drive) == [("stream_aborted", "gap")]


def test_sessions_are_bounded() -> None:
    drive = Http(timeout_ms=10**9)
    for n in range(MAX_SESSIONS + 1):
        drive.open(request(1), session=f"s{n}")
    assert [(e["status"], e["reason"]) for e in ends(drive)] == [("timeout", "too_many_sessions")]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_quiet_session_is_closed_unless_a_stream_is_open(streaming: bool) -> None:
    drive = Http(timeout_ms=10**9)
    get = drive.stream(method="GET", session="s")
    drive.event(get, message("roots/list", 1))
    if not streaming:
        drive.done(get, "client")
    drive.tick(IDLE_NS / MS + 1)
    assert status(drive) == ([] if streaming else [("timeout", "idle")])
    drive.json(message(id=1, result={}), None, status=202, session="s")
    assert status(drive)[-1] == ("completed", None if streaming else "unmatched")


def test_cancelling_without_a_session() -> None:
    drive = Http()
    drive.stream(request("only-one"))
    drive.json(message("notifications/cancelled", params={"requestId": "only-one"}), None, status=202)
    assert status(drive) == [("cancelled", "cancelled")]
