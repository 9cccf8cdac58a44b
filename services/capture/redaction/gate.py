"""The gate: one look over everything at once that says which rules are worth running. Most text ends here.

Hyperscan (Vectorscan) holds the patterns in three databases, since rules made of digits alone, or of a shape alone,
make its literal matcher stop at every number: 126 rules in one database scanned 96 MB/s, in three over 150.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import hyperscan as hs

from schemas.errors import UserError
from services.capture.redaction.rules import Rule

# Not secrets, but signs that one may hide behind an encoding. Five groups of base64 that decode to printable ASCII,
# or twelve such hex pairs, do not come about by chance; a run's alignment follows from where the pattern matches.
BASE64_SHAPE = rb"(?:[I-Za-f][CDEFGHSTUVWXijklmnyz0123][AEIMQUYcgkosw048BFJNRVZdhlptx159][A-Za-z0-9+/_\-]){5}"
HEX_SHAPE = rb"(?:[2-7][0-9A-Fa-f][ :]?){12}"
ESCAPE, PERCENT, BASE64, HEX = -1, -2, -3, -4
_SIGNS = (
    (PERCENT, "words", rb"%[2-7][0-9A-Fa-f]"),
    (BASE64, "shapes", BASE64_SHAPE),
    (HEX, "shapes", HEX_SHAPE),
)
# Searched for by itself: where there is one, one is enough, and Hyperscan would stop at each.
_ESCAPE = re.compile(rb'\\(?:[nrt"/\'\\]|u00[0-9a-fA-F]{2}|x[2-7][0-9a-fA-F])')
DATABASES = ("words", "numbers", "shapes")


# Past so many matches in one text the places no longer help: every rule of that database looks at the whole text
# instead.
MAX_MATCHES = 20_000


class Gate:
    """Where which rules can match a text. Safe to share between threads."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._databases: list[tuple[Any, tuple[int, ...]]] = []
        for name in DATABASES:
            once = hs.HS_FLAG_SINGLEMATCH
            entries = [
                (i, r.gate, 0 if r.spec.window else once) for i, r in enumerate(rules) if r.spec.database == name
            ]
            entries += [(sign, pattern, 0) for sign, where, pattern in _SIGNS if where == name]
            if not entries:
                continue
            database = hs.Database(mode=hs.HS_MODE_BLOCK)
            try:
                database.compile(
                    expressions=[p for _, p, _ in entries],
                    ids=list(range(len(entries))),
                    elements=len(entries),
                    flags=[f for _, _, f in entries],
                )
            except hs.error as e:
                raise UserError(f"redaction rules: the gate refuses a pattern of database {name}: {e}") from e
            self._databases.append((database, tuple(i for i, _, _ in entries)))
        self._local = threading.local()

    def hits(self, text: bytes) -> dict[int, list[int]]:
        """Rule index → ascending offsets where its gate pattern ends; no offsets: anywhere. Signs of encodings
        have negative indices."""
        found: dict[int, list[int]] = {}
        for database, ids, scratch, matches in self._scanners():
            try:
                database.scan(text, matches.add, scratch=scratch)
            except hs.ScanTerminated:
                matches.found.clear()
                found.update((i, []) for i in ids)
                continue
            if matches.found:
                for i, end in matches.found:
                    found.setdefault(ids[i], []).append(end)
                matches.found.clear()
        if b"\\" in text and _ESCAPE.search(text):
            found[ESCAPE] = []
        return found

    def _scanners(self) -> list[tuple[Any, tuple[int, ...], Any, _Matches]]:
        try:
            return self._local.scanners  # type: ignore[no-any-return]
        except AttributeError:
            # Hyperscan's scratch space serves one scan at a time, so each thread has its own.
            scanners = [(db, ids, hs.Scratch(db), _Matches()) for db, ids in self._databases]
            self._local.scanners = scanners
            return scanners


class _Matches:
    """Collects (pattern, end offset) of one scan; ends the scan when they are too many."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def add(self, pattern: int, _start: int, end: int, _flags: int, _context: object) -> bool:
        self.found.append((pattern, end))
        return len(self.found) > MAX_MATCHES
