"""Operations of several ids: input asked for in a result, tasks, questions to people, and whose time it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.mcp_proxy.observer.driving import Http, Json, Stdio, error, message, request, result

pytestmark = pytest.mark.unit


def ask(id: Any, state: str | None = None, **requests: Json) -> Json:
    """A result that asks for input."""
    made: Json = {"resultType": "input_required"}
    if state is not None:
        made["requestState"] = state
    if requests:
        made["inputRequests"] = requests
    return message(id=id, result=made)


FORM = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Your name?", "requestedSchema": {"type": "object"}},
}
SAID = {"name": {"action": "accept", "content": {"name": "Ann Onymous"}}}


def operations(drive: Any) -> list[str]:
    return [event["operation_id"] for event in drive.rpc()]


def statuses(drive: Any) -> list[str]:
    return [event["status"] for event in drive.rpc()]


@pytest.mark.parametrize("state", ["s-1", None])
def test_a_call_that_comes_again_with_input_is_the_same_operation(state: str | None) -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.sleep(10)
    drive.server(ask(1, state, name=FORM))
    drive.sleep(5000)
    more = {"inputResponses": SAID} | ({"requestState": state} if state else {})
    drive.client(request(2, **more))
    drive.sleep(20)
    drive.server(result(2, resultType="complete"))
    assert len(set(operations(drive))) == 1
    assert statuses(drive) == ["started", "input_required", "started", "completed"]
    assert "duration_ms" not in drive.rpc()[1]
    end = drive.rpc()[-1]
    assert (end["duration_ms"], end["duration_server_ms"], end["duration_human_ms"]) == (5030, 30, 5000)
    assert [e["jsonrpc_id"] for e in drive.rpc()] == ["1", "1", "2", "2"]
    asked, answered = drive.named("mcp.elicitation.requested", "mcp.elicitation.completed")
    assert (asked["mode"], asked["operation_id"]) == ("form", end["operation_id"])
    assert "Your name?" in asked["content"]["summary"]
    assert (answered["action"], answered["operation_id"]) == ("accept", end["operation_id"])
    assert "Ann Onymous" not in str(drive.events)


def test_several_rounds_over_http_without_a_session() -> None:
    drive = Http()
    for n in range(3):
        more = {"requestState": f"s{n}", "inputResponses": {}} if n else {}
        drive.json(request(1, **more), ask(1, f"s{n + 1}"))
        drive.sleep(100)
    drive.json(request(1, requestState="s3"), result(1))
    assert len(set(operations(drive))) == 1
    assert statuses(drive)[1::2] == ["input_required"] * 3 + ["completed"]
    assert drive.rpc()[-1]["duration_human_ms"] == 300


def test_the_state_links_exactly() -> None:
    drive = Stdio()
    drive.client(request(1), request(2))
    drive.server(ask(1, "A"), ask(2, "B"))
    drive.client(request(3, requestState="B"), request(4, requestState="A"), request(5, requestState="a"))
    one, two, *_ = operations(drive)
    assert operations(drive)[4:6] == [two, one]
    assert operations(drive)[6] not in (one, two)
    drive.client(request(6, requestState="A"))
    assert operations(drive)[7] not in (one, two)


def test_without_a_state_the_shape_links_and_several_are_not_guessed_between() -> None:
    drive = Stdio()
    calls = [{"name": "a", "arguments": {"x": 1}}, {"name": "a", "arguments": {"y": 1}}, {"name": "b"}]
    for n, call in enumerate(calls):
        drive.client(message("tools/call", n, params=call))
        drive.server(ask(n, name=FORM))
    first = [e["operation_id"] for e in drive.named("mcp.rpc.request")]
    for n, call in reversed(list(enumerate(calls))):
        changed = call | {"inputResponses": SAID} | ({"arguments": {"x": 2}} if n == 0 else {})
        drive.client(message("tools/call", 10 + n, params=changed))
    assert [e["operation_id"] for e in drive.named("mcp.rpc.request")][3:] == first[::-1]
    # Two that look the same: which one is meant cannot be known.
    for n in (20, 21):
        drive.client(message("tools/call", n, params=calls[0]))
        drive.server(ask(n, name=FORM))
    waiting = operations(drive)[-3::2]
    drive.client(message("tools/call", 22, params=calls[0] | {"inputResponses": SAID}))
    assert operations(drive)[-1] not in waiting
    # A call that brings no input is a call of its own.
    drive.client(message("tools/call", 23, params=calls[1]))
    drive.server(ask(23, name=FORM))
    waiting = operations(drive)[-1:]
    drive.client(message("tools/call", 24, params=calls[1]))
    assert operations(drive)[-1] not in waiting


def test_a_state_that_several_share_links_by_shape() -> None:
    drive = Stdio()
    drive.client(request(1, name="a"), request(2, name="b"))
    drive.server(ask(1, "S"), ask(2, "S"))
    drive.client(request(3, name="b", requestState="S"))
    assert operations(drive)[-1] == operations(drive)[1]


def task(status: str, **more: Any) -> Json:
    return {"taskId": "t-1", "status": status, "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": 1, **more}


def test_a_task_of_the_extension_ends_with_tasks_get() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message(id=1, result=task("working", resultType="task")))
    drive.sleep(1000)
    drive.client(message("tasks/get", 2, params={"taskId": "t-1"}))
    drive.server(message(id=2, result=task("working")))
    drive.client(message("tasks/get", 3, params={"taskId": "t-1"}))
    drive.server(message(id=3, result=task("input_required", inputRequests={"name": FORM})))
    drive.sleep(4000)
    drive.client(message("tasks/update", 4, params={"taskId": "t-1", "inputResponses": SAID}))
    drive.server(message(id=4, result={}))
    drive.sleep(500)
    drive.client(message("tasks/get", 5, params={"taskId": "t-1"}))
    drive.server(message(id=5, result=task("completed", result={"content": [], "isError": True})))
    operation = operations(drive)[0]
    own = drive.rpc(operation)
    assert [e["status"] for e in own] == [
        "started",
        "task_pending",
        "started",
        "task_pending",
        "started",
        "input_required",
        "started",
        "completed",
    ]
    end = own[-1]
    assert (end["method"], end["tool_name"], end["is_error_result"]) == ("tools/call", "search", True)
    assert (end["duration_ms"], end["duration_server_ms"], end["duration_human_ms"]) == (5500, 1500, 4000)
    update = [e for e in drive.rpc() if e["method"] == "tasks/update"]
    assert [e.get("parent_operation_id") for e in update] == [operation] * 2
    assert {e["operation_id"] for e in drive.named("mcp.elicitation.requested", "mcp.elicitation.completed")} == {
        operation
    }


@pytest.mark.parametrize(("last", "status"), [("failed", "error"), ("cancelled", "cancelled")])
def test_a_task_that_does_not_succeed(last: str, status: str) -> None:
    drive = Http()
    drive.json(request(1), message(id=1, result=task("working", resultType="task")))
    more = {"error": {"code": -32000, "message": "no"}} if last == "failed" else {}
    drive.json(message("tasks/get", 2, params={"taskId": "t-1"}), message(id=2, result=task(last, **more)))
    end = drive.rpc()[-1]
    assert (end["event_name"], end["status"], end["operation_id"]) == ("mcp.rpc.error", status, operations(drive)[0])
    assert (end.get("protocol_error") or {}).get("code") == (-32000 if more else None)


def test_a_task_of_2025_ends_with_tasks_result() -> None:
    drive = Stdio()
    drive.client(request(1, task={"ttl": 60000}))
    drive.server(message(id=1, result={"task": task("working", ttl=1)}))
    drive.server(message("notifications/tasks/status", params=task("input_required")))
    drive.client(message("tasks/result", 2, params={"taskId": "t-1"}))
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}
    drive.server(message("elicitation/create", 1, params=FORM["params"] | {"_meta": meta}))
    drive.sleep(700)
    drive.client(message(id=1, result={"action": "decline"}))
    drive.server(message("notifications/tasks/status", params=task("working")))
    drive.sleep(50)
    drive.client(message("tasks/get", 3, params={"taskId": "t-1"}))
    drive.server(message(id=3, result=task("completed")))
    drive.server(result(2, _meta=meta))
    operation = operations(drive)[0]
    assert [e["status"] for e in drive.rpc(operation)] == [
        "started",
        "task_pending",
        "completed",
        "started",
        "completed",
        "started",
        "task_pending",
        "completed",
    ]
    end = drive.rpc()[-1]
    assert (end["duration_ms"], end["duration_human_ms"], end["is_error_result"]) == (750, 700, False)


def test_a_task_that_is_cancelled() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message(id=1, result={"task": task("working")}))
    drive.client(message("tasks/cancel", 2, params={"taskId": "t-1"}))
    drive.server(message(id=2, result=task("cancelled")))
    operation = operations(drive)[0]
    assert [(e["status"], e.get("reason")) for e in drive.rpc(operation)] == [
        ("started", None),
        ("task_pending", None),
        ("cancelled", "task_cancelled"),
    ]
    assert [e["status"] for e in drive.rpc() if e["method"] == "tasks/cancel"] == ["started", "completed"]


def test_a_poll_that_is_given_up_does_not_end_the_task() -> None:
    drive = Stdio(timeout_ms=1000)
    drive.client(request(1))
    drive.server(message(id=1, result=task("working", resultType="task")))
    drive.client(message("tasks/get", 2, params={"taskId": "t-1"}))
    drive.client(message("notifications/cancelled", params={"requestId": 2}))
    assert drive.rpc()[-1]["status"] == "task_pending"
    drive.client(message("tasks/get", 3, params={"taskId": "t-1"}))
    drive.server(message(id=3, result=task("completed", result={})))
    assert drive.rpc()[-1]["status"] == "completed"


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"a": 1}, "", "unheard-of"])
def test_a_task_in_a_state_that_is_none_is_still_pending(odd: Any) -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message(id=1, result=task("working", resultType="task")))
    drive.server(message("notifications/tasks", params=task(odd, result={})))
    drive.client(message("tasks/get", 2, params={"taskId": "t-1"}))
    drive.server(message(id=2, result=task(odd, result=odd, error=odd, inputRequests=odd)))
    assert statuses(drive)[-1] == "task_pending"
    drive.client(
        message("tasks/update", 3, params={"taskId": "t-1", "inputResponses": odd}), request(4, inputResponses=odd)
    )


@pytest.mark.parametrize("polling", [False, True])
def test_a_task_ends_with_the_process(polling: bool) -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message(id=1, result=task("working", resultType="task")))
    drive.sleep(200)
    if polling:
        drive.client(message("tasks/get", 2, params={"taskId": "t-1"}))
    drive.exit(code=1)
    ended = [e for e in drive.rpc(operations(drive)[0]) if e["status"] == "error"]
    assert [(e["reason"], e["duration_ms"]) for e in ended] == [("server_exited", 200)]


def test_a_task_told_with_its_result_has_ended() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message(id=1, result=task("working", resultType="task")))
    drive.server(message("notifications/tasks", params=task("completed", result={"content": []})))
    assert [e["status"] for e in drive.rpc(operations(drive)[0])][-2:] == ["completed", "completed"]
    assert drive.named("mcp.rpc.response")[-1]["reason"] == "told"


def test_tasks_nobody_knows_are_operations_of_their_own() -> None:
    drive = Stdio()
    drive.client(message("tasks/get", 1, params={"taskId": "t-9"}), message("tasks/result", 2, params={}))
    drive.server(message(id=1, result=task("working")), error(2))
    assert [(e["method"], e["status"]) for e in drive.rpc()][2:] == [
        ("tasks/get", "completed"),
        ("tasks/result", "error"),
    ]


def test_a_question_inside_a_call_is_a_persons_time() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.sleep(10)
    drive.server(message("elicitation/create", "e", params=FORM["params"]))
    drive.sleep(3000)
    drive.server(message("sampling/createMessage", "s", params={}))
    drive.sleep(500)
    drive.client(message(id="e", result=SAID["name"]))
    drive.sleep(40)
    drive.client(message(id="s", result={"role": "assistant"}))
    drive.server(result(1))
    call = drive.rpc()[-1]
    assert (call["duration_ms"], call["duration_server_ms"], call["duration_human_ms"]) == (3550, 50, 3500)
    asked, sampled, said, answered = drive.rpc()[1:5]
    assert asked["parent_operation_id"] == sampled["parent_operation_id"] == call["operation_id"]
    assert (said["duration_ms"], said["duration_human_ms"]) == (3500, 3500)
    assert "duration_human_ms" not in answered
    assert "summary" not in said["response"]
    requested, completed = drive.named("mcp.elicitation.requested", "mcp.elicitation.completed")
    assert (requested["operation_id"], completed["operation_id"]) == (call["operation_id"],) * 2
    assert (completed["action"], completed["mode"]) == ("accept", "form")
    assert "Ann Onymous" not in str(drive.events)


def test_questions_at_once_are_counted_once() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(message("elicitation/create", 1, params={}))
    drive.sleep(1000)
    drive.server(message("elicitation/create", 2, params={}))
    drive.sleep(1000)
    drive.client(message(id=1, result={"action": "cancel"}))
    drive.sleep(1000)
    drive.client(error(2))
    drive.sleep(1)
    drive.server(result(1))
    assert (drive.rpc()[-1]["duration_human_ms"], drive.rpc()[-1]["duration_server_ms"]) == (3000, 1)


def test_a_question_by_url_is_with_the_person_until_it_is_done() -> None:
    drive = Stdio()
    drive.client(request(1))
    params = {"mode": "url", "url": "https://idp.example/authorize?x=1", "elicitationId": "u1", "message": "Sign in"}
    drive.server(message("elicitation/create", 1, params=params))
    drive.sleep(100)
    drive.client(message(id=1, result={"action": "accept"}))
    drive.sleep(4000)
    drive.server(message("notifications/elicitation/complete", params={"elicitationId": "u1"}))
    drive.sleep(5)
    drive.server(result(1))
    call = drive.rpc()[-1]
    assert (call["duration_human_ms"], call["duration_server_ms"]) == (4100, 5)
    assert drive.named("mcp.rpc.notification")[-1]["operation_id"] == call["operation_id"]


def test_inside_which_of_several_calls_a_server_asks_is_not_guessed() -> None:
    drive = Stdio()
    drive.client(request(1), request(2), message("ping", 3))
    drive.server(message("elicitation/create", 1, params={}))
    assert "parent_operation_id" not in drive.rpc()[-1]
    drive.server(result(2))
    drive.server(message("elicitation/create", 2, params={}))
    assert drive.rpc()[-1]["parent_operation_id"] == drive.rpc()[0]["operation_id"]


def test_over_http_the_stream_says_inside_which_call_it_is() -> None:
    drive = Http()
    one, two = drive.stream(request(1), session="s"), drive.stream(request(2), session="s")
    drive.event(two, message("elicitation/create", 1, params={}))
    drive.sleep(100)
    drive.json(message(id=1, result={"action": "accept"}), None, status=202, session="s")
    for channel, id in ((one, 1), (two, 2)):
        drive.event(channel, result(id))
    first, second = drive.rpc()[-2:]
    assert (first["duration_human_ms"], second["duration_human_ms"]) == (0, 100)


def test_a_question_given_up_is_no_persons_time_any_more() -> None:
    drive = Stdio(timeout_ms=1000)
    drive.client(request(1))
    drive.sleep(500)
    drive.server(message("elicitation/create", 1, params={}))
    drive.sleep(100)
    drive.server(message("notifications/cancelled", params={"requestId": 1}))
    drive.sleep(100)
    drive.server(result(1))
    assert (drive.rpc()[-1]["duration_human_ms"], drive.rpc()[-1]["duration_server_ms"]) == (100, 600)


def test_a_late_result_that_asks_for_more_goes_on() -> None:
    drive = Stdio(timeout_ms=1000)
    drive.client(request(1))
    drive.tick(1000)
    drive.server(ask(1, "S"))
    drive.client(request(2, requestState="S"))
    drive.server(result(2))
    assert statuses(drive) == ["started", "timeout", "input_required", "started", "completed"]
    assert len(set(operations(drive))) == 1
