"""A client configuration as text, with the places of the values that a wrap changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from schemas.errors import UserError

BOM = "\ufeff"
HIDDEN = "…"


class Span(NamedTuple):
    """Characters from `start` to before `end`."""

    start: int
    end: int


class Edit(NamedTuple):
    """These characters become `text`; an empty span inserts."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a key. `pair` is where the key begins; `items` are the places of an array's items, else empty.

    `lead` + an array + `trail`, put in at `pair`, is a key `args` just before this one, in its shape.
    """

    pair: int
    span: Span
    items: tuple[Span, ...]
    lead: str
    trail: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One server: `where` are the keys that lead to it, the last is its name; `data` is what the entry means.

    `fields` has the places of command, args and url as far as the entry has them.
    """

    where: tuple[str, ...]
    line: int
    data: Any
    fields: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the client calls the server."""
        return self.where[-1]


class Document(Protocol):
    """A parsed file. `meaning` is the whole of it as dicts, lists and scalars."""

    text: str
    entries: list[Entry]
    meaning: Any

    def quote(self, text: str) -> str:
        """The text as a string of this format."""

    def values(self) -> Iterator[Span]:
        """Every string that is not a key, every number and date, and every comment."""


FIELDS = ("command", "args", "url")


def fail(file: str, line: int | None, what: str) -> UserError:
    """The error for a file that is left as it is."""
    return UserError(f"{file}:{line}: {what}" if line else f"{file}: {what}", exit_code=65)


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with the edits made; they must not overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits):
        parts += (text[at : edit.start], edit.text)
        at = edit.end
    return "".join((*parts, text[at:]))


def line_of(text: str, at: int) -> int:
    """Line of a character, from 1."""
    return text.count("\n", 0, at) + 1


def line_start(text: str, at: int) -> str | None:
    """The line break and white space before `at`, if nothing else stands before it on its line."""
    begin = text.rfind("\n", 0, at) + 1
    if not begin or text[begin:at].strip(" \t"):
        return None
    return ("\r\n" if text[:begin].endswith("\r\n") else "\n") + text[begin:at]
