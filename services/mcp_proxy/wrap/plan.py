"""What a wrap or its undoing would make of a file, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.errors import UserError
from services.mcp_proxy.wrap import clients, servers
from services.mcp_proxy.wrap.clients import Client
from services.mcp_proxy.wrap.document import Document, Entry, apply
from services.mcp_proxy.wrap.files import Record, Snapshot, sha256
from services.mcp_proxy.wrap.servers import Change, Kind

Outcome = Literal["wrapped", "already", "restored", "left", "lost"]
"""left: as it is, for a reason · lost: wrapped, and nobody can tell what it was."""


@dataclass(frozen=True, slots=True)
class Server:
    """What becomes of one server, and why if it needs a word."""

    entry: Entry
    kind: Kind
    outcome: Outcome
    why: str | None = None


@dataclass(slots=True)
class Plan:
    """`data` are the new bytes; `record` is to be kept with them, None means there is none any more."""

    client: Client
    data: bytes
    servers: list[Server] = field(default_factory=list)
    record: Record | None = None
    edited_since: bool = False


def wrap(
    snapshot: Snapshot,
    client: Client | None,
    record: Record | None,
    *,
    others: Mapping[str, str],
    program: str,
    http: bool,
) -> Plan:
    """Every stdio server, with `http` every remote one too, goes through the proxy. `others` are the routes of other
    files. Raises UserError.
    """
    document, found = _parse(snapshot, client)
    routes = dict(record.routes) if record else {}
    known = {**others, **routes}
    changes: list[tuple[Entry, Change]] = []
    plan = Plan(found, snapshot.data)
    for entry in document.entries:
        state = servers.state(entry)
        if state.wrapped or state.problem:
            plan.servers.append(Server(entry, state.kind, "already" if state.wrapped else "left", state.problem))
        elif state.kind == "remote" and not http:
            plan.servers.append(
                Server(entry, "remote", "left", "remote; --http sends it through a proxy that must run")
            )
        else:
            remote = state.kind == "remote"
            change = (
                servers.wrap_remote(document, entry, known) if remote else servers.wrap_stdio(document, entry, program)
            )
            changes.append((entry, change))
            routes |= change.route
            plan.servers.append(Server(entry, state.kind, "wrapped"))
    plan.record = record
    if changes:
        if record is None:
            original = snapshot.data
        elif sha256(snapshot.data) == record.wrapped_sha256:
            original = record.original
        else:
            # Edited since: without the wraps it is what an undo must give.
            original = _unwrapped(document, snapshot, found, record)[0]
        plan.data = _changed(document, snapshot, found, changes)
        plan.record = Record(original, sha256(plan.data), routes)
    return plan


def unwrap(snapshot: Snapshot, client: Client | None, record: Record | None) -> Plan:
    """The file as it was before the wrap; if it was edited since, each wrapped server as it was. Raises UserError."""
    document, found = _parse(snapshot, client)
    as_wrapped = record is not None and sha256(snapshot.data) == record.wrapped_sha256
    data, outcome = _unwrapped(document, snapshot, found, record)
    if record is not None and as_wrapped:
        return Plan(found, record.original, outcome)
    lost = any(server.outcome == "lost" for server in outcome)
    edited = record is not None and data != snapshot.data
    return Plan(found, data, outcome, record if lost else None, edited)


def _unwrapped(
    document: Document, snapshot: Snapshot, client: Client, record: Record | None
) -> tuple[bytes, list[Server]]:
    """Takes back every wrap but those that were there before the wrap of the record."""
    routes, own = record.routes if record else {}, set()
    if record:
        earlier, _ = clients.parse(record.original.decode(), snapshot.path, client)
        own = {entry.where for entry in earlier.entries if servers.state(entry).wrapped}
    changes: list[tuple[Entry, Change]] = []
    outcome = []
    for entry in document.entries:
        state = servers.state(entry)
        if entry.where in own:
            outcome.append(Server(entry, state.kind, "left", "it was wrapped before"))
        elif not state.wrapped:
            outcome.append(Server(entry, state.kind, "left", "not wrapped"))
        elif change := (
            servers.unwrap_remote(document, entry, routes)
            if state.kind == "remote"
            else servers.unwrap_stdio(document, entry)
        ):
            changes.append((entry, change))
            outcome.append(Server(entry, state.kind, "restored"))
        else:
            why = (
                "no record says where its route leads"
                if state.kind == "remote"
                else "no wrap wrote it; edit it by hand"
            )
            outcome.append(Server(entry, state.kind, "lost", why))
    return _changed(document, snapshot, client, changes) if changes else snapshot.data, outcome


def _parse(snapshot: Snapshot, client: Client | None) -> tuple[Document, Client]:
    document, found = clients.parse(snapshot.text, snapshot.path, client)
    if not document.entries:
        raise UserError(f"{snapshot.path}: there are no servers below {clients.keys(found)}", exit_code=65)
    return document, found


def _changed(document: Document, snapshot: Snapshot, client: Client, changes: list[tuple[Entry, Change]]) -> bytes:
    """The new bytes, proved to mean what they must."""
    text = apply(document.text, (edit for _, change in changes for edit in change.edits))
    expected = document.meaning
    for entry, change in changes:
        expected = _with(expected, entry.where, change.fields)
    if clients.parse(text, snapshot.path, client)[0].meaning != expected:
        raise UserError(f"{snapshot.path}: cannot be edited safely; nothing was changed", exit_code=65)
    return text.encode()


def _with(node: dict[str, Any], where: Sequence[str], fields: Mapping[str, object]) -> dict[str, Any]:
    """A copy, as far as it differs, with these fields at `where`; None takes a field away."""
    if where:
        return {**node, where[0]: _with(node[where[0]], where[1:], fields)}
    return {key: value for key, value in {**node, **fields}.items() if value is not None or key not in fields}
