"""The connections of one proxy: processes, HTTP sessions, and what has no session."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from schemas.events import Transport
from schemas.identity import derived_id
from services.mcp_proxy.observer.connection import Connection
from services.mcp_proxy.observer.frames import Room
from services.mcp_proxy.observer.health import Health
from services.mcp_proxy.observer.making import Maker, Party

MAX_SESSIONS = 4096
"""HTTP sessions and streams of the older transport; of more the one that was quiet longest is closed."""
MAX_SERVERS = 1000
IDLE_NS = 3600 * 1_000_000_000
"""A session without an open exchange that is quiet for so long is closed."""


@dataclass(slots=True)
class _Server:
    health: Health
    stateless: Connection


class Hub:
    """Where every HTTP exchange finds its connection. Health is one for each server: sessions come and go."""

    def __init__(self, maker: Maker, room: Room) -> None:
        self.maker = maker
        self.room = room
        self._servers: OrderedDict[str, _Server] = OrderedDict()
        self._sessions: OrderedDict[tuple[str, str], Connection] = OrderedDict()

    def process(self, server: str, channel: int, at_ns: int, *, resumed: bool = False) -> Connection:
        """The connection of a stdio process, with a health of its own."""
        health = Health()
        connection = self._connection(server, "stdio", health, at_ns, "stdio", channel, at_ns)
        if not resumed:
            connection.changed(health.connecting(), at_ns)
        return connection

    def stateless(self, server: str, at_ns: int) -> Connection:
        """What the server's exchanges without a session share; ids are apart by their exchange."""
        return self._server(server, at_ns).stateless

    def session(self, server: str, session: str, at_ns: int) -> Connection:
        """The connection of an mcp-session-id; its own id is made from the keyed hash of that."""
        digest = self.session_hash(session)
        return self._kept(server, digest, "streamable-http", at_ns)

    def legacy(self, server: str, stream: int, at_ns: int) -> Connection:
        """The connection of a stream of the older transport, by the channel of that stream."""
        return self._kept(server, f"stream {stream}", "sse", at_ns)

    def session_hash(self, session: str) -> str:
        """What is told of an mcp-session-id."""
        return self.maker.capture.hash(session)

    def end_session(self, server: str, session: str, at_ns: int, status: str, reason: str) -> None:
        """The server does not know the session any more."""
        connection = self._sessions.pop((server, self.session_hash(session)), None)
        if connection is not None:
            connection.close(at_ns, status, reason)

    def end_legacy(self, server: str, stream: int, at_ns: int, reason: str) -> None:
        """The stream that carries the answers is over."""
        connection = self._sessions.pop((server, f"stream {stream}"), None)
        if connection is not None:
            connection.close(at_ns, "stream_aborted", reason)

    def tick(self, now_ns: int) -> None:
        """Timeouts, and sessions that are idle."""
        for server in self._servers.values():
            server.stateless.tick(now_ns)
        idle = []
        for key, connection in self._sessions.items():
            connection.tick(now_ns)
            if not connection.exchanges and now_ns - connection.seen_ns > IDLE_NS:
                idle.append(key)
        for key in idle:
            self._sessions.pop(key).close(now_ns, "timeout", "idle")

    # parts

    def _server(self, name: str, at_ns: int) -> _Server:
        found = self._servers.get(name)
        if found is None:
            health = Health()
            stateless = self._connection(name, "streamable-http", health, at_ns, "stateless", at_ns)
            found = self._servers[name] = _Server(health, stateless)
            stateless.changed(health.connecting(), at_ns)
            if len(self._servers) > MAX_SERVERS:
                self._servers.popitem(last=False)[1].stateless.close(at_ns, "timeout", "too_many_servers")
        return found

    def _kept(self, server: str, key: str, transport: Transport, at_ns: int) -> Connection:
        found = self._sessions.get((server, key))
        if found is None:
            health = self._server(server, at_ns).health
            salt = () if transport == "streamable-http" else (at_ns,)
            found = self._connection(server, transport, health, at_ns, key, *salt)
            self._sessions[server, key] = found
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)[1].close(at_ns, "timeout", "too_many_sessions")
        else:
            self._sessions.move_to_end((server, key))
        found.seen_ns = at_ns
        return found

    def _connection(
        self, server: str, transport: Transport, health: Health, at_ns: int, *about: str | int
    ) -> Connection:
        maker = self.maker
        named = derived_id("mcp.connection", server, *about)
        party = Party(named, server, transport, maker.settings.agent_runtime)
        return Connection(maker, party, health, at_ns)
