"""A look at a JSON text of which only the beginning and the end were kept: its outermost members."""

from __future__ import annotations

import re
from typing import Any

import orjson

_MARKS = re.compile(rb'["{}\[\],:]')
_OPENING, _CLOSING = b"{[", b"}]"
_MAX_VALUE = 4096


def members(text: bytes) -> tuple[dict[str, Any], str | None, bytes]:
    """Of a JSON object's beginning: its members that are whole and short, the name of the one in which the text breaks
    off, and what is there of that one's value.

    Members longer than 4 KiB have the value None. Raises nothing; what is no object has no members.
    """
    found: dict[str, Any] = {}
    start = text.find(b"{") + 1
    if not start or text[: start - 1].strip():
        return found, None, b""
    depth, at, colon = 1, start, -1
    while (mark := _MARKS.search(text, at)) is not None:
        kind, at = mark[0], mark.end()
        if kind == b'"':
            at = _after_text(text, at)
            if at < 0:
                break
        elif kind in _OPENING:
            depth += 1
        elif kind in _CLOSING:
            depth -= 1
            if not depth:
                _keep(found, text[start : mark.start()])
                return found, None, b""
        elif depth == 1:
            if kind == b":" and colon < 0:
                colon = mark.start()
            elif kind == b",":
                _keep(found, text[start : mark.start()])
                start, colon = at, -1
    if colon < 0:
        return found, None, b""
    return found, _name(text[start:colon]), text[colon + 1 :]


def last_members(text: bytes) -> dict[str, Any]:
    """Of a JSON object's end: its members that are whole and short."""
    found: dict[str, Any] = {}
    text = text.rstrip()
    if not text.endswith(b"}"):
        return found
    end = at = len(text) - 1
    depth = 1
    marks = [mark.start() for mark in _MARKS.finditer(text, 0, at)]
    while marks:
        at = marks.pop()
        kind = text[at : at + 1]
        if kind == b'"':
            # Backwards the first quote ends a text; the one that begins it has an even number of backslashes before it.
            while marks and (text[marks[-1] : marks[-1] + 1] != b'"' or _escaped(text, marks[-1])):
                marks.pop()
            if not marks:
                break
            marks.pop()
        elif kind in _CLOSING:
            depth += 1
        elif kind in _OPENING:
            depth -= 1
            if not depth:
                _keep(found, text[at + 1 : end])
                break
        elif kind == b"," and depth == 1:
            _keep(found, text[at + 1 : end])
            end = at
    return found


def _after_text(text: bytes, at: int) -> int:
    """The place behind the quote that ends the text which begins at `at`; -1 if it does not end."""
    while (at := text.find(b'"', at)) >= 0:
        if not _escaped(text, at):
            return at + 1
        at += 1
    return -1


def _escaped(text: bytes, at: int) -> bool:
    before = at
    while before and text[before - 1] == 0x5C:
        before -= 1
    return (at - before) % 2 == 1


def _keep(found: dict[str, Any], member: bytes) -> None:
    """One `"name": value`; its value is None where it is long."""
    name, separator, _ = member[: _MAX_VALUE + 256].partition(b":")
    if len(member) > _MAX_VALUE:
        known = _name(name) if separator else None
        if known is not None:
            found.setdefault(known, None)
        return
    try:
        found.update(orjson.loads(b"{" + member + b"}"))
    except ValueError:
        return


def _name(text: bytes) -> str | None:
    try:
        name = orjson.loads(text.strip())
    except ValueError:
        return None
    return name if isinstance(name, str) else None
