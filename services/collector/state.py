"""What a collector remembers besides its journal: who it is, which deliveries it has seen, the open calls, how far it
published.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import orjson

from schemas.errors import UserError
from services.adapters.calls import CallTable
from services.collector.files import private, write_atomic
from services.collector.journal import Position

MAX_SEEN = 100_000
"""Delivery ids kept to drop repeats; older ones can only come back from a spool that was away for longer."""


class Seen:
    """The newest MAX_SEEN keys, in order."""

    def __init__(self, keys: list[str] | None = None) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict.fromkeys(keys or [])

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Remember a key; the oldest goes when there are too many."""
        self._keys[key] = None
        if len(self._keys) > MAX_SEEN:
            self._keys.popitem(last=False)

    def dump(self) -> list[str]:
        """All keys, oldest first."""
        return list(self._keys)


def delivery_key(event: Mapping[str, Any]) -> str:
    """What two events of one delivery share: all of the event id but its low 16 bits."""
    return str(event["event_id"])[:-4]


Gap: TypeAlias = tuple[int, int, int] | Position
"""(epoch, first, last) of lost seqs, or where a damaged line is."""


@dataclass(slots=True)
class Snapshot:
    """State as of a journal position: everything before it is folded in. `told` are the ranges and lines of damage whose
    receipts are in the journal, so that no reader has them told again.
    """

    position: Position
    epoch: int
    seq: int
    calls: CallTable
    seen: Seen
    told: set[Gap] = field(default_factory=set)


def load_snapshot(path: Path) -> Snapshot | None:
    """The snapshot on disk; None where there is none or it is of another version (the journal is then read from its
    start).
    """
    try:
        data = orjson.loads(path.read_bytes())
        return Snapshot(
            Position.from_json(data["position"]),
            data["epoch"],
            data["seq"],
            CallTable.load(data["calls"]),
            Seen(data["seen"]),
            {_gap(item) for item in data.get("told", ())},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def freeze_snapshot(snapshot: Snapshot) -> Callable[[], bytes]:
    """The snapshot as of now; the result, called in any thread, gives the file that `load_snapshot` reads."""
    calls, seen = snapshot.calls.freeze(), snapshot.seen.dump()
    rest = {"position": snapshot.position.to_json(), "epoch": snapshot.epoch, "seq": snapshot.seq, "seen": seen}
    rest["told"] = [gap.to_json() if isinstance(gap, Position) else gap for gap in snapshot.told]
    return lambda: orjson.dumps(rest | {"calls": orjson.Fragment(calls())})


def _gap(item: Any) -> Gap:
    return Position.from_json(item) if isinstance(item[0], str) else (int(item[0]), int(item[1]), int(item[2]))


def next_epoch(folder: Path, used: int) -> tuple[str, int]:
    """(producer id, epoch): the id is made once a state folder, the epoch is above its last one and above `used`."""
    path = folder / "producer.json"
    try:
        data = orjson.loads(path.read_bytes())
        producer, last = str(data["id"]), int(data["epoch"])
    except (OSError, ValueError, KeyError, TypeError):
        producer, last = str(uuid.uuid4()), 0
    epoch = max(last, used) + 1
    write_atomic(path, orjson.dumps({"id": producer, "epoch": epoch}))
    return producer, epoch


def hold(folder: Path) -> BinaryIO:
    """Lock the state folder for this process's life. Raises UserError where another collector has it or it cannot be
    written.
    """
    try:
        private(folder)
        file = open(folder / "collector.lock", "ab+")
    except OSError as error:
        raise UserError(
            f"state folder {folder} cannot be written ({error.strerror}); set AGENTTRACE_HOME to a folder that can",
            exit_code=os.EX_CANTCREAT,
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read(32).decode(errors="replace").strip() or "unknown"
        file.close()
        raise UserError(
            f"another collector (pid {holder}) has the journal in {folder}; stop it, or set AGENTTRACE_HOME to another folder",
            exit_code=os.EX_TEMPFAIL,
        ) from None
    with contextlib.suppress(OSError):
        # The lock is what counts; a full disk only costs the next one the name of its holder.
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
    return file
