"""What a request, its answer, or the want of one means for its operation, and the event that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from services.mcp_proxy.observer import results
from services.mcp_proxy.observer.making import Direction
from services.mcp_proxy.observer.messages import Message
from services.mcp_proxy.observer.operations import Operation, Pending, digest, shape_of, task_of
from services.mcp_proxy.tap import Side

if TYPE_CHECKING:
    from services.mcp_proxy.observer.connection import Carrier, Connection

_NAMED = "io.modelcontextprotocol/serverInfo"
_ENDS = {"completed": "completed", "failed": "error", "cancelled": "cancelled"}
_SECRETS_IN = frozenset({"tools/call", "resources/read", "prompts/get"})
MAX_URLS = 1000


def asked(connection: Connection, pending: Pending, message: Message, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the event of a request."""
    maker, params, operation = connection.maker, message.params, pending.operation
    pending.shape = shape_of(pending.method, params)
    connection.requests.follow(pending, meta.get("progressToken"))
    fields: dict[str, Any] = {}
    shown: Any = params
    if pending.method == "tools/call":
        name, arguments = params.get("name"), params.get("arguments")
        arguments = {} if arguments is None else arguments
        shown = arguments
        operation.tool = maker.ident(name) or "unknown"
        fields["facts"] = maker.facts(message, name if isinstance(name, str) else "unknown", arguments)
    elif pending.method == "tools/list":
        pending.params = {"cursor": params.get("cursor") is not None}
    elif pending.method == "elicitation/create":
        named = params.get("elicitationId")
        mode = maker.ident(params.get("mode", "form"))
        pending.params = {"mode": mode, "url": digest(named) if isinstance(named, str) else None}
    direction: Direction = "input" if pending.side is Side.CLIENT else "output"
    hidden = "inputResponses" in params and pending.method != "tools/call"
    fields["request"] = side = maker.side(message, shown, direction, shown=not hidden)
    if pending.method == "tools/call" and message.whole:
        operation.arguments_hash = side.hash or maker.capture.hash(shown)
    fields["tool_name"], fields["arguments_hash"] = operation.tool, operation.arguments_hash
    return fields


def told(connection: Connection, pending: Pending, message: Message, at_ns: int) -> None:
    """What a request says beside itself."""
    params, operation = message.params, pending.operation
    if "inputResponses" in params:
        of = pending.parent if pending.method == "tasks/update" else operation
        results.answers(connection, at_ns, params["inputResponses"], of)
    if pending.method == "tasks/update" and pending.parent is not None:
        pending.parent.goes_on("task", at_ns)
    elif pending.method == "elicitation/create" and pending.side is Side.SERVER:
        if pending.parent is not None:
            pending.parent.waits(pending.key, at_ns)
        results.question(connection, at_ns, params, pending.parent)


def answered(
    connection: Connection, pending: Pending, message: Message, at_ns: int, carrier: Carrier, *, late: bool
) -> None:
    """The answer to a request: its event, and what follows of it."""
    side = Side.SERVER if pending.side is Side.CLIENT else Side.CLIENT
    maker, operation = connection.maker, pending.operation
    result = message.result if isinstance(message.result, dict) else {}
    status, fields = _status(connection, pending, message, result, at_ns)
    if pending.method in ("initialize", "server/discover"):
        _learn(connection, pending.method, result)
    over = status in ("completed", "error", "cancelled")
    if over:
        operation.ended = True
        fields |= operation.durations(at_ns)
        if operation.progress:
            fields["progress_count"] = operation.progress
    if late:
        # A result that only asks for more, or names a task, says by its status that the operation goes on after all.
        status, fields["reason"] = (status if not over else "late"), f"after_{pending.why}"
    if pending.method == "elicitation/create":
        _person_answered(connection, pending, result, at_ns)
    failed = message.kind == "error" or status == "error"
    value = message.error if message.kind == "error" else message.result
    direction: Direction = "output" if side is Side.SERVER else "input"
    fields["response"] = maker.side(message, value, direction, shown=pending.method != "elicitation/create")
    if operation.method in _SECRETS_IN and side is Side.SERVER and message.kind == "result":
        fields["facts"] = maker.output_facts(message)
    if message.kind == "error":
        fields["protocol_error"] = maker.error(message.error)
    if pending.parent is not None:
        fields["parent_operation_id"] = pending.parent.id
    if status == "cancelled":
        failed = True
    maker.rpc(
        "mcp.rpc.error" if failed else "mcp.rpc.response",
        at_ns,
        connection.party,
        side,
        status,
        id=pending.id,
        method=operation.method if over else pending.method,
        operation=operation,
        http=carrier.http,
        tool_name=operation.tool,
        arguments_hash=operation.arguments_hash,
        **fields,
    )
    if message.kind == "result":
        _consequences(connection, pending, result, at_ns)


def _status(
    connection: Connection, pending: Pending, message: Message, result: dict[str, Any], at_ns: int
) -> tuple[str, dict[str, Any]]:
    """How an answer leaves the operation, and fields of its event."""
    operation = pending.operation
    fields: dict[str, Any] = {}
    if message.kind == "error":
        return "error", fields
    if pending.poll and pending.method == "tasks/get":
        state = _word(result.get("status"))
        if state == "input_required":
            operation.waits("task", at_ns)
            return "input_required", fields
        operation.goes_on("task", at_ns)
        if state not in _ENDS or (state == "completed" and "result" not in result):
            return "task_pending", fields
        inner = result.get("result")
        if operation.method == "tools/call" and isinstance(inner, dict):
            fields["is_error_result"] = inner.get("isError") is True
        if isinstance(result.get("error"), dict):
            fields["protocol_error"] = connection.maker.error(result["error"])
        return _ENDS[state], fields
    if result.get("resultType") == "input_required":
        return "input_required", fields
    if not pending.poll and pending.method not in ("tasks/cancel", "tasks/update", "tasks/get"):
        task = task_of(result)
        if task is not None and pending.side is Side.CLIENT:
            connection.tasks.add(task[0], operation)
            return "task_pending", fields
    if operation.method == "tools/call" and message.whole:
        fields["is_error_result"] = result.get("isError") is True
    return "completed", fields


def _consequences(connection: Connection, pending: Pending, result: dict[str, Any], at_ns: int) -> None:
    """What a result says beside its answer."""
    operation = pending.operation
    if result.get("resultType") == "input_required" or (
        pending.method == "tasks/get" and result.get("status") == "input_required"
    ):
        results.questions(connection, at_ns, result.get("inputRequests"), operation)
        if pending.method != "tasks/get":
            operation.waits("input", at_ns)
            connection.asked.add(operation, result.get("requestState"), pending.shape)
    elif pending.method == "tools/list":
        continued = bool(pending.params.get("cursor"))
        results.tools_listed(connection, at_ns, result, continued=continued, origin=operation.origin)
    elif pending.method == "tasks/cancel" and pending.parent is not None and not pending.parent.ended:
        state = result.get("status")
        if state == "cancelled":
            ended_aside(connection, pending.parent, at_ns, "cancelled", "task_cancelled")


def _learn(connection: Connection, method: str, result: dict[str, Any]) -> None:
    """Who the server says it is."""
    maker, party = connection.maker, connection.party
    about = result.get("serverInfo")
    if not isinstance(about, dict):
        meta = result.get("_meta")
        about = meta.get(_NAMED) if isinstance(meta, dict) else None
    if isinstance(about, dict):
        party.declared_name = maker.ident(about.get("name"))
        party.declared_version = maker.ident(about.get("version"))
    if method == "initialize":
        party.protocol_version = maker.ident(result.get("protocolVersion")) or party.protocol_version


def _person_answered(connection: Connection, pending: Pending, result: dict[str, Any], at_ns: int) -> None:
    parent, url = pending.parent, pending.params.get("url")
    if parent is not None:
        if pending.params.get("mode") == "url" and url and result.get("action") == "accept":
            # The person goes there now; that it is done is said by a notification.
            parent.waits(f"url:{url}", at_ns)
            connection.urls[url] = parent
            if len(connection.urls) > MAX_URLS:
                connection.urls.popitem(last=False)
        parent.goes_on(pending.key, at_ns)
    results.answer(connection, at_ns, pending.params, result, parent)


def unanswered(connection: Connection, pending: Pending, at_ns: int, status: str, reason: str, **fields: Any) -> None:
    """A request ended and nothing answered it."""
    operation = pending.operation
    if pending.method == "elicitation/create" and pending.parent is not None:
        pending.parent.goes_on(pending.key, at_ns)
    goes_on = pending.poll and status in ("cancelled", "stream_aborted", "completed")
    if goes_on:
        # One poll was given up, or could not be read.
        status = "task_pending"
    else:
        operation.ended = True
        fields |= operation.durations(at_ns)
        if operation.progress:
            fields["progress_count"] = operation.progress
    connection.maker.rpc(
        "mcp.rpc.response" if status in ("completed", "task_pending") else "mcp.rpc.error",
        at_ns,
        connection.party,
        Side.SERVER if pending.side is Side.CLIENT else Side.CLIENT,
        status,
        id=pending.id,
        method=pending.method if goes_on else operation.method,
        operation=operation,
        tool_name=operation.tool,
        arguments_hash=operation.arguments_hash,
        parent_operation_id=pending.parent.id if pending.parent else None,
        reason=reason,
        **fields,
    )


def ended_aside(connection: Connection, operation: Operation, at_ns: int, status: str, reason: str) -> None:
    """An operation ended by something that is no answer to its own request."""
    operation.ended = True
    durations: dict[str, Any] = operation.durations(at_ns)
    connection.maker.rpc(
        "mcp.rpc.response" if status == "completed" else "mcp.rpc.error",
        at_ns,
        connection.party,
        Side.SERVER,
        status,
        method=operation.method,
        operation=operation,
        tool_name=operation.tool,
        arguments_hash=operation.arguments_hash,
        reason=reason,
        **durations,
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def unmatched(connection: Connection, message: Message, side: Side, at_ns: int, carrier: Carrier) -> None:
    """An answer that nobody asked for, or whose question is not known any more."""
    maker = connection.maker
    failed = message.kind == "error"
    value = message.error if failed else message.result
    direction: Direction = "output" if side is Side.SERVER else "input"
    maker.rpc(
        "mcp.rpc.error" if failed else "mcp.rpc.response",
        at_ns,
        connection.party,
        side,
        "error" if failed else "completed",
        id=message.id,
        origin=carrier.origin,
        http=carrier.http,
        response=maker.side(message, value, direction, shown=side is Side.SERVER),
        protocol_error=maker.error(message.error) if failed else None,
        reason="unmatched",
    )


def noticed(
    connection: Connection, message: Message, side: Side, at_ns: int, carrier: Carrier
) -> tuple[Pending | None, Operation | None]:
    """What a notification is about."""
    params, method = message.params, message.method
    if method == "notifications/cancelled":
        return connection.requests.by_value(params.get("requestId"), side, carrier.scope), None
    if method == "notifications/progress":
        asker = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        pending = connection.requests.by_token(params.get("progressToken"), asker)
        if pending is not None:
            pending.operation.progress += 1
        return pending, None
    if method in ("notifications/tasks/status", "notifications/tasks"):
        task = connection.tasks.get(params.get("taskId"))
        if task is not None and not task.ended:
            _task_told(connection, task, params, at_ns)
        return None, task
    if method == "notifications/elicitation/complete":
        named = params.get("elicitationId")
        operation = connection.urls.pop(digest(named), None) if isinstance(named, str) else None
        if operation is not None and isinstance(named, str):
            operation.goes_on(f"url:{digest(named)}", at_ns)
        return None, operation
    return None, None


def _task_told(connection: Connection, task: Operation, params: dict[str, Any], at_ns: int) -> None:
    """A task's state, told unasked."""
    state = _word(params.get("status"))
    if state == "input_required":
        task.waits("task", at_ns)
        return
    task.goes_on("task", at_ns)
    # With its result (2026-07-28) it may be all that the client wants to know.
    if state in _ENDS and ("result" in params or "error" in params):
        ended_aside(connection, task, at_ns, _ENDS[state], "told")
