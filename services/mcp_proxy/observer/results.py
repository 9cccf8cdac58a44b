"""What the results of MCP say beside their answer: the list of tools, questions to people, who the server is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schemas.canonical import canonical
from schemas.events import McpElicitation, McpTool, McpTools
from services.mcp_proxy.observer.making import NOWHERE, Maker, Origin
from services.mcp_proxy.observer.operations import Operation

if TYPE_CHECKING:
    from services.mcp_proxy.observer.connection import Connection

MAX_TOOLS, TOOLS_PER_EVENT = 10_000, 1000
MAX_QUESTIONS = 20
"""Questions of one result that are told; one result that asks more asks nobody."""


def tools_listed(
    connection: Connection, at_ns: int, result: Mapping[str, Any], *, continued: bool, origin: Origin = NOWHERE
) -> None:
    """mcp.tools.listed for one page of tools/list."""
    maker, party = connection.maker, connection.party
    listed = result.get("tools")
    if not isinstance(listed, list) or not maker.settings.publish.capture_tools_list:
        return
    tools = [_tool(maker, tool) for tool in listed[:MAX_TOOLS] if isinstance(tool, dict)]
    for start in range(0, max(1, len(tools)), TOOLS_PER_EVENT):
        maker.event(
            McpTools,
            "mcp.tools.listed",
            at_ns,
            origin,
            connection_id=party.connection_id,
            mcp_server=party.server,
            transport=party.transport,
            agent_runtime=party.runtime,
            tools=tuple(tools[start : start + TOOLS_PER_EVENT]),
            count=len(listed),
            continued=continued,
            more=isinstance(result.get("nextCursor"), str),
        )


def _tool(maker: Maker, tool: Mapping[str, Any]) -> McpTool:
    """Fingerprints are plain SHA-256 over canonical JSON, so that a tool has the same one on every host."""
    schemas = {name: tool.get(name) for name in ("inputSchema", "outputSchema") if tool.get(name) is not None}
    described = {"name": tool.get("name"), "description": tool.get("description"), **schemas}
    return McpTool(
        name=maker.ident(tool.get("name")) or "unknown",
        fingerprint=_sha256(described),
        description_hash=_sha256(tool.get("description")) if tool.get("description") is not None else None,
        schema_hash=_sha256(schemas) if schemas else None,
    )


def _sha256(value: Any) -> str:
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"


def question(connection: Connection, at_ns: int, params: Mapping[str, Any], operation: Operation | None) -> None:
    """mcp.elicitation.requested; `params` are those of elicitation/create."""
    asked = {name: params[name] for name in ("message", "requestedSchema", "url") if name in params}
    content = connection.maker.content(asked, "output")
    _elicitation(connection, at_ns, "requested", operation, mode=params.get("mode", "form"), content=content)


def answer(
    connection: Connection,
    at_ns: int,
    mode: Mapping[str, Any],
    result: Mapping[str, Any],
    operation: Operation | None,
) -> None:
    """mcp.elicitation.completed. What the person said is kept as size and hash only. `mode` holds that of the question."""
    said, maker = result.get("content"), connection.maker
    content = None if said is None else maker.content(said, "input", shown=False)
    action = maker.ident(result.get("action"))
    _elicitation(connection, at_ns, "completed", operation, mode=mode.get("mode"), action=action, content=content)


def questions(connection: Connection, at_ns: int, requests: Any, operation: Operation) -> None:
    """mcp.elicitation.requested for each question to a person among the inputRequests of a result."""
    for request in list(requests.values())[:MAX_QUESTIONS] if isinstance(requests, dict) else ():
        if isinstance(request, dict) and request.get("method") == "elicitation/create":
            params = request.get("params")
            question(connection, at_ns, params if isinstance(params, dict) else {}, operation)


def answers(connection: Connection, at_ns: int, responses: Any, operation: Operation | None) -> None:
    """mcp.elicitation.completed for each answer of a person among the inputResponses of a request."""
    for response in list(responses.values())[:MAX_QUESTIONS] if isinstance(responses, dict) else ():
        if isinstance(response, dict) and isinstance(response.get("action"), str):
            answer(connection, at_ns, {}, response, operation)


def _elicitation(
    connection: Connection, at_ns: int, step: str, operation: Operation | None, *, mode: Any, **fields: Any
) -> None:
    maker, party = connection.maker, connection.party
    maker.event(
        McpElicitation,
        f"mcp.elicitation.{step}",
        at_ns,
        operation.origin if operation else NOWHERE,
        connection_id=party.connection_id,
        mcp_server=party.server,
        agent_runtime=party.runtime,
        operation_id=operation.id if operation else None,
        mode=maker.ident(mode),
        **fields,
    )
