"""Drains the spool: what forwarders and plugins wrote while no collector answered, oldest first.

A file is deleted only after its events are in the journal; a crash between the two repeats the delivery, which its id makes harmless.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from services.forwarder import protocol

log = logging.getLogger(__name__)

_TORN_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Spooled:
    """One file of the spool. `body` is a marker with size and SHA-256 where the payload was over the limit."""

    path: Path
    runtime: str
    delivery_id: str | None
    body: bytes


def pending(spool: Path, limit: int = 500) -> list[Path]:
    """The oldest files of all runtimes' folders; delivery ids sort by time."""
    found = [
        path
        for folder in _folders(spool)
        for path in folder.iterdir()
        if not path.name.startswith(".") and path.is_file() and not path.is_symlink()
    ]
    return sorted(found, key=lambda path: path.name)[:limit]


def read(path: Path) -> Spooled:
    """A spool file as a delivery. What is no spool file is taken as it is, so that it ends as a quarantined event."""
    with open(path, "rb") as file:
        content = file.read(protocol.MAX_BODY_BYTES + 4096)
        if file.read(1):
            digest = hashlib.sha256(content)
            size = len(content) + 1
            file.seek(len(content))
            size = len(content)
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
            marker = {protocol.OVERSIZED_KEY: {"size_bytes": size, "sha256": digest.hexdigest()}}
            return Spooled(path, path.parent.name, _id(path), orjson.dumps(marker))
    try:
        body = protocol.parse_spool_file(content).body
    except ValueError:
        body = content
    return Spooled(path, path.parent.name, _id(path), body)


def torn(spool: Path) -> Iterator[Path]:
    """Temporary files that their writer left behind; a writer needs seconds at most, so an hour is proof."""
    deadline = time.time() - _TORN_AFTER_S
    for folder in _folders(spool):
        for path in folder.glob(f"{protocol.SPOOL_TEMPORARY_PREFIX}*"):
            try:
                if path.stat().st_mtime < deadline:
                    yield path
            except OSError:
                continue


def take_drops(spool: Path, receipt: Callable[[str, int, int], None]) -> None:
    """Tell `receipt(runtime, count, bytes)` of each folder's drops, then forget them.

    The file is renamed in one round and read in the next, when no hook can still be appending to it. A crash before the unlink
    repeats the receipt: a loss may be told twice, never not at all.
    """
    for folder in _folders(spool):
        taken = folder / f"{protocol.SPOOL_DROPPED}.taken"
        if taken.exists():
            drops = protocol.parse_dropped(taken.read_bytes())
            count = len(drops.named) + drops.unnamed
            if count:
                receipt(folder.name, count, sum(size for _, size in drops.named))
            taken.unlink()
        current = folder / protocol.SPOOL_DROPPED
        if current.exists():
            current.replace(taken)


def _folders(spool: Path) -> list[Path]:
    try:
        return [path for path in spool.iterdir() if path.is_dir() and protocol.is_runtime(path.name)]
    except OSError:
        return []


def _id(path: Path) -> str | None:
    return path.name if protocol.is_delivery_id(path.name) else None
