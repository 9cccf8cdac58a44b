"""The Observer: records of the tap in, events out. Pure: no clock, no I/O, no thread."""

from __future__ import annotations

from collections import OrderedDict

from schemas.events import EventBase
from services.capture.content import Capture
from services.mcp_proxy.observer.frames import Room
from services.mcp_proxy.observer.http import Exchange
from services.mcp_proxy.observer.hub import Hub
from services.mcp_proxy.observer.making import Maker, ObserverSettings
from services.mcp_proxy.observer.records import about, number
from services.mcp_proxy.observer.stdio import StdioChannel
from services.mcp_proxy.tap import Kind, Record, Side

MAX_CHANNELS = 20_000
"""Channels open at once; of more the oldest is no longer looked at."""


class Observer:
    """One for a proxy process. `record` and `tick` give events in the order of time and raise nothing.

    `metadata_only`: sizes, hashes and ids, no summaries, facts or messages. `faults` counts records that the observer
    itself failed on; each ends in a receipt.
    """

    def __init__(self, capture: Capture, settings: ObserverSettings) -> None:
        self._maker = Maker(capture, settings)
        self._room = Room(capture)
        self._hub = Hub(self._maker, self._room)
        self._channels: OrderedDict[int, StdioChannel | Exchange] = OrderedDict()
        self._now_ns = 0
        self.faults = 0

    @property
    def metadata_only(self) -> bool:
        """Whether only sizes and hashes are looked at."""
        return self._maker.metadata_only

    @metadata_only.setter
    def metadata_only(self, only: bool) -> None:
        self._maker.metadata_only = only
        self._room.scan = not only

    @property
    def held(self) -> int:
        """Bytes of unfinished frames."""
        return self._room.held

    def record(self, record: Record) -> list[EventBase]:
        """The events that follow from one record."""
        self._now_ns = max(self._now_ns, record.at_ns)
        try:
            self._record(record)
        except Exception as error:
            # What one record holds must not cost what is known of all others.
            self.faults += 1
            self._maker.dropped(record.at_ns, f"not_understood: {type(error).__name__}", 1, len(record.data))
        return self._taken()

    def tick(self, now_ns: int) -> list[EventBase]:
        """What time alone brings: timeouts, standard error, idle sessions. Call it about once a second."""
        self._now_ns = max(self._now_ns, now_ns)
        for channel in self._channels.values():
            channel.tick(now_ns)
        self._hub.tick(now_ns)
        return self._taken()

    def lost(self, count: int) -> list[EventBase]:
        """So many records never came. Any answer may have been among them."""
        self._lost(count)
        return self._taken()

    def _lost(self, count: int) -> None:
        for channel in self._channels.values():
            for side in Side:
                channel.gap(side, self._now_ns)
        self._maker.dropped(self._now_ns, "proxy_tap_full", count)

    def _record(self, record: Record) -> None:
        if record.kind is Kind.OPEN:
            self._open(record)
        elif record.kind is Kind.LOST:
            self._lost(number(about(record).get("records")) or 1)
        else:
            channel = self._channels.get(record.channel)
            if channel is None:
                # Its OPEN was lost (a LOST record says so), or it is one too many.
                return
            if record.kind is Kind.CLOSE:
                del self._channels[record.channel]
            channel.take(record)

    def _open(self, record: Record) -> None:
        opened = about(record)
        known = self._channels.pop(record.channel, None)
        if known is not None:
            known.take(Record(Kind.CLOSE, record.channel, Side.CLIENT, record.at_ns, b'{"reason":"reopened"}'))
        server = self._maker.ident(opened.get("server")) or "unknown"
        made: StdioChannel | Exchange
        if opened.get("transport") == "stdio":
            resumed = opened.get("resumed") is True
            connection = self._hub.process(server, record.channel, record.at_ns, resumed=resumed)
            made = StdioChannel(connection, self._room)
        else:
            made = Exchange(self._hub, server, record.channel, opened, record.at_ns)
        self._channels[record.channel] = made
        if len(self._channels) > MAX_CHANNELS:
            number, oldest = self._channels.popitem(last=False)
            oldest.take(Record(Kind.CLOSE, number, Side.CLIENT, record.at_ns, b'{"reason":"too_many"}'))
            self._maker.dropped(record.at_ns, "too_many_channels", 1)

    def _taken(self) -> list[EventBase]:
        taken, self._maker.out = self._maker.out, []
        return taken
