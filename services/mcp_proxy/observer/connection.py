"""One MCP connection: which request is answered by what, on stdio and HTTP, in all revisions of the protocol."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas.events import HttpInfo, McpServer
from schemas.identity import derived_id
from services.mcp_proxy.observer import outcomes
from services.mcp_proxy.observer.health import Health, Trouble
from services.mcp_proxy.observer.making import NOWHERE, Maker, Origin, Party
from services.mcp_proxy.observer.messages import Id, Message
from services.mcp_proxy.observer.noise import Invalid
from services.mcp_proxy.observer.operations import TASK_METHODS, Asked, Operation, Pending, Tasks
from services.mcp_proxy.observer.requests import Requests
from services.mcp_proxy.tap import Side

RESUME_NS = 60_000_000_000
"""So long a stream that gave its events ids may be resumed before what is open on it counts as aborted."""
MAX_DETACHED = 100

_META = "io.modelcontextprotocol/"
_ON_TASK = frozenset({"tasks/cancel", "tasks/update"})
_ASIDE = frozenset({"ping", "subscriptions/listen"})
"""Requests of a client inside which a server asks nothing."""


@dataclass(slots=True)
class Carrier:
    """What a message travels on: a stdio process, or one HTTP exchange. `scope` sets ids apart where a connection has
    no session; `open` are the client's requests that this exchange brought.
    """

    scope: str = ""
    http: HttpInfo | None = None
    origin: Origin = NOWHERE
    protocol_version: str | None = None
    open: dict[str, Pending] = field(default_factory=dict)


@dataclass(slots=True)
class Detached:
    """A stream that broke off and may be resumed (Last-Event-ID): the last ids it gave, and what is open on it."""

    carrier: Carrier
    ids: Iterable[str]
    since_ns: int


class Connection:
    """State of one connection. Events go to the maker; nothing here raises for what a message holds."""

    def __init__(self, maker: Maker, party: Party, health: Health, began_ns: int) -> None:
        self.maker = maker
        self.party = party
        self.health = health
        self.seen_ns = began_ns
        self.exchanges = 0
        """HTTP exchanges that belong to it and are not over."""
        self.requests = Requests()
        self.asked = Asked()
        self.tasks = Tasks()
        self.urls: OrderedDict[str, Operation] = OrderedDict()
        self.invalid = Invalid(maker, party)
        self.detached: list[Detached] = []
        self._began_ns = began_ns
        self._count = 0

    def take(self, message: Message, side: Side, at_ns: int, carrier: Carrier) -> None:
        """One message that `side` sent."""
        self.seen_ns = at_ns
        if message.kind == "request":
            self._request(message, side, at_ns, carrier)
        elif message.kind == "notification":
            self._notification(message, side, at_ns, carrier)
        elif message.kind == "invalid":
            self.invalid.take(message, side, at_ns)
            if side is Side.SERVER and message.reason not in ("gap", "batch_too_long"):
                self.bad("invalid_frame", at_ns)
        else:
            self._answer(message, side, at_ns, carrier)

    # requests

    def _request(self, message: Message, side: Side, at_ns: int, carrier: Carrier) -> None:
        assert message.id is not None
        maker, method, params = self.maker, message.method, message.params
        meta = params.get("_meta")
        origin, version = carrier.origin, carrier.protocol_version
        if isinstance(meta, dict):
            origin = maker.origin(meta, origin)
            version = maker.ident(meta.get(f"{_META}protocolVersion")) or version
            self.party.runtime = maker.runtime(meta.get(f"{_META}clientInfo"), self.party.runtime)
        elif method == "initialize":
            version = maker.ident(params.get("protocolVersion")) or version
        if method == "initialize":
            self.party.runtime = maker.runtime(params.get("clientInfo"), self.party.runtime)
        if version is not None and version != self.party.protocol_version and method != "initialize":
            self.party.protocol_version = version
        operation, parent = self._operation(message, side, at_ns, carrier, origin)
        key = carrier.scope + message.id.key
        pending = Pending(key, message.id, method, operation, at_ns)
        pending.parent = parent
        fields = self._register(pending, carrier)
        if parent is not None:
            fields["parent_operation_id"] = parent.id
        fields |= outcomes.asked(self, pending, message, meta if isinstance(meta, dict) else {})
        maker.rpc(
            "mcp.rpc.request",
            at_ns,
            self.party,
            side,
            "started",
            id=message.id,
            method=method,
            operation=operation,
            protocol_version=version or self.party.protocol_version,
            **fields,
        )
        outcomes.told(self, pending, message, at_ns)

    def _operation(
        self, message: Message, side: Side, at_ns: int, carrier: Carrier, origin: Origin
    ) -> tuple[Operation, Operation | None]:
        """The operation of a request, and the one that it belongs below."""
        method, params = message.method, message.params
        parent: Operation | None = None
        if side is Side.CLIENT:
            if method in TASK_METHODS and (task := self.tasks.get(params.get("taskId"))) is not None:
                return task, None
            if method in _ON_TASK:
                parent = self.tasks.get(params.get("taskId"))
            elif (again := self.asked.take(method, params)) is not None:
                again.goes_on("input", at_ns)
                return again, None
        else:
            parent = self._inside(params, carrier)
        self._count += 1
        assert message.id is not None
        named = derived_id(
            "mcp.operation", self.party.connection_id, self._began_ns, int(side), self._count, message.id.key
        )
        if parent is not None and origin.trace_id is None:
            origin = parent.origin
        return Operation(named, method, side, at_ns, origin), parent

    def _inside(self, params: dict[str, Any], carrier: Carrier) -> Operation | None:
        """The client's operation inside which a server asks: the task it names, else the only one that is open here."""
        meta = params.get("_meta")
        related = meta.get(f"{_META}related-task") if isinstance(meta, dict) else None
        if isinstance(related, dict) and (task := self.tasks.get(related.get("taskId"))) is not None:
            return task
        opened: Iterable[Pending] = carrier.open.values() if carrier.open else self.requests.all(Side.CLIENT)
        found: Operation | None = None
        for pending in opened:
            if pending.method not in _ASIDE:
                if found is not None:
                    return None
                found = pending.operation
        return found

    def _register(self, pending: Pending, carrier: Carrier) -> dict[str, Any]:
        oldest = self.requests.one_too_many(pending.side)
        if oldest is not None:
            self.give_up([oldest], pending.at_ns, "timeout", "too_many_open")
        if pending.side is Side.CLIENT:
            carrier.open[pending.key] = pending
            pending.carried = carrier.open
        return {} if self.requests.add(pending, carrier.scope) else {"reason": "duplicate_id"}

    # answers

    def _answer(self, message: Message, side: Side, at_ns: int, carrier: Carrier) -> None:
        assert message.id is not None or not message.whole
        asker = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        pending, late = None, None
        if message.id is not None:
            pending = self._find(message.kind, message.id, asker, carrier)
            late = None if pending else self.requests.gone(message.id, asker, carrier.scope)
        answered = pending or late
        if answered is None:
            outcomes.unmatched(self, message, side, at_ns, carrier)
        else:
            if pending is not None:
                self.requests.forget(pending)
            outcomes.answered(self, answered, message, at_ns, carrier, late=late is not None)
        if side is Side.SERVER:
            self._judge(message, at_ns)

    def _find(self, kind: str, id: Id, asker: Side, carrier: Carrier) -> Pending | None:
        if id.type == "null" and kind == "error" and len(carrier.open) == 1 and carrier.http:
            # A request that could not be read is answered without its id; here it can be no other.
            return next(iter(carrier.open.values()))
        return self.requests.find(id, asker, carrier.scope)

    def _judge(self, message: Message, at_ns: int) -> None:
        code = message.error.get("code")
        if message.kind == "error" and isinstance(code, int) and (code == -32603 or -32020 < code <= -32000):
            self.bad("error", at_ns)
        else:
            self.good(at_ns)

    # notifications

    def _notification(self, message: Message, side: Side, at_ns: int, carrier: Carrier) -> None:
        maker, params = self.maker, message.params
        pending, operation = outcomes.noticed(self, message, side, at_ns, carrier)
        operation = operation or (pending.operation if pending else None)
        maker.rpc(
            "mcp.rpc.notification",
            at_ns,
            self.party,
            side,
            "completed",
            method=message.method,
            operation=operation,
            origin=carrier.origin,
            request=maker.side(message, params, "input" if side is Side.CLIENT else "output"),
        )
        if message.method == "notifications/cancelled" and pending is not None:
            self.give_up([pending], at_ns, "cancelled", "cancelled")

    # ends without an answer

    def give_up(self, pendings: list[Pending], at_ns: int, status: str, reason: str, **fields: Any) -> None:
        """These requests end without an answer; one that comes later is told as `late`."""
        for pending in pendings:
            self.requests.give_up(pending, status)
            outcomes.unanswered(self, pending, at_ns, status, reason, **fields)

    def detach(self, carrier: Carrier, ids: Iterable[str], at_ns: int) -> None:
        """A stream ended before what is open on it was answered, and can be resumed."""
        self.detached.append(Detached(carrier, ids, at_ns))
        if len(self.detached) > MAX_DETACHED:
            self.give_up(list(self.detached.pop(0).carrier.open.values()), at_ns, "stream_aborted", "not_resumed")

    def resume(self, last_id: str) -> Detached | None:
        """The stream that gave this id last (or near its end), which goes on now."""
        for stream in self.detached:
            if last_id in stream.ids:
                self.detached.remove(stream)
                return stream
        return None

    def tick(self, now_ns: int) -> None:
        """Requests that are open for too long, and what was counted of invalid frames."""
        self.invalid.turn(now_ns)
        for stream in [one for one in self.detached if now_ns - one.since_ns >= RESUME_NS]:
            self.detached.remove(stream)
            self.give_up(list(stream.carrier.open.values()), now_ns, "stream_aborted", "not_resumed")
        limit = now_ns - self.maker.settings.timeout_ms * 1_000_000
        for side in Side:
            late = [one for one in self.requests.all(side) if one.at_ns <= limit and not one.lasting]
            for pending in late:
                self.give_up([pending], now_ns, "timeout", "gap" if pending.gap else "timeout")
                if side is Side.CLIENT and not pending.gap and not pending.operation.waiting:
                    self.bad("timeout", now_ns)

    def close(self, at_ns: int, status: str, reason: str) -> None:
        """The connection is over: so are its open requests."""
        self.invalid.turn(at_ns, over=True)
        for side in Side:
            self.give_up(list(self.requests.all(side)), at_ns, status, reason)
        if status == "error":
            for operation in self.tasks.open():
                outcomes.ended_aside(self, operation, at_ns, "error", reason)

    def gap(self, side: Side, pendings: Iterable[Pending] | None = None) -> None:
        """Bytes that `side` sent were not copied: answers may have been among them."""
        asker = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        for pending in self.requests.all(asker) if pendings is None else pendings:
            pending.gap = True

    # health

    def good(self, at_ns: int, reason: str = "answered") -> None:
        """The server did well."""
        self.changed(self.health.good(reason), at_ns)

    def bad(self, trouble: Trouble, at_ns: int) -> None:
        """The server did not."""
        self.changed(self.health.bad(trouble), at_ns)

    def changed(self, change: tuple[str, str] | None, at_ns: int) -> None:
        """Tell of a change of the server's health."""
        if change is not None:
            party = self.party
            self.maker.event(
                McpServer,
                "mcp.server.health_changed",
                at_ns,
                connection_id=party.connection_id,
                mcp_server=party.server,
                transport=party.transport,
                agent_runtime=party.runtime,
                health=change[0],
                reason=change[1],
                declared_name=party.declared_name,
                declared_version=party.declared_version,
                protocol_version=party.protocol_version,
                severity="info" if change[0] in ("connecting", "up") or change[1] == "exit code 0" else "warning",
            )
