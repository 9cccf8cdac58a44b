"""JSON with comments and trailing commas, as VS Code and its kin read it (RFC 8259 otherwise).

The decoder is the standard library's: it tells where a value ends. No concrete syntax tree is needed for that, and the
grammars that offer one know no trailing commas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from services.mcp_proxy.wrap.document import BOM, FIELDS, Entry, Span, Value, fail, line_of, line_start

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_COMMENT = r"//[^\r\n]*|/\*.*?\*/"
_TOKENS = re.compile(f"({_STRING})|{_COMMENT}", re.DOTALL)
_VALUES = re.compile(f"({_STRING})|{_COMMENT}|-?[0-9][0-9.eE+-]*", re.DOTALL)
_COMMAS = re.compile(f"({_STRING})|,(?=[ \t\r\n]*[}}\\]])", re.DOTALL)
_COLON = re.compile(r"[ \t\r\n]*:")
_NOT_BREAK = re.compile(r"[^\r\n]")
_SPACE = re.compile(r"[ \t\r\n]*")


class Json:
    """See `document.Document`. Raises UserError with file and line for what is no JSON, or has a key twice on the way
    to a server.
    """

    def __init__(self, text: str, file: str, containers: Sequence[tuple[str, ...]]) -> None:
        self.text = text
        self.entries: list[Entry] = []
        self._file = file
        self._plain = " " + text[1:] if text[:1] == BOM else text
        self._decoder = json.JSONDecoder(parse_constant=self._constant)
        try:
            self.meaning: Any = self._read()
        except (RecursionError, ValueError):
            raise fail(file, None, "not valid JSON: nested too deeply, or a number out of range") from None
        start = self._skip(0)
        if not isinstance(self.meaning, dict):
            raise fail(file, line_of(text, start), "the file must hold an object")
        for container in containers:
            self._descend(start, self.meaning, container, ())

    def quote(self, text: str) -> str:
        return quoted(text)

    def values(self) -> Iterator[Span]:
        for token in _VALUES.finditer(self.text):
            if token[1] is None or not _COLON.match(self._plain, token.end()):
                yield Span(*token.span())

    def _read(self) -> Any:
        try:
            return self._decoder.decode(self._plain)
        except json.JSONDecodeError:
            self._plain = _COMMAS.sub(_blank, _TOKENS.sub(_blank, self._plain))
        if not self._plain.strip():
            raise fail(self._file, 1, "the file is empty; a client's configuration has its servers below 'mcpServers'")
        try:
            return self._decoder.decode(self._plain)
        except json.JSONDecodeError as error:
            what = f"not valid JSON: {error.msg} (column {error.colno})"
            raise fail(self._file, error.lineno, what) from None

    def _descend(self, at: int, data: Any, steps: tuple[str, ...], way: tuple[str, ...]) -> None:
        if data is None or (steps and not isinstance(data, dict)):
            return
        if not isinstance(data, dict):
            raise fail(self._file, line_of(self.text, at), f"'{way[-1]}' must be an object")
        for key, _, span in self._members(at):
            if not steps:
                self._entry((*way, key), span, data[key])
            elif steps[0] in ("*", key):
                self._descend(span.start, data[key], steps[1:], (*way, key))

    def _entry(self, where: tuple[str, ...], span: Span, data: Any) -> None:
        fields = {}
        if isinstance(data, dict):
            for key, pair, value in self._members(span.start):
                if key in FIELDS:
                    items = tuple(self._items(value.start)) if isinstance(data[key], list) else ()
                    trail = "," + (line_start(self.text, pair) or " ")
                    fields[key] = Value(pair, value, items, '"args": ', trail)
        self.entries.append(Entry(where, line_of(self.text, span.start), data, fields))

    def _members(self, at: int) -> Iterator[tuple[str, int, Span]]:
        """Key, where it begins, and where its value is, of the object at `at`."""
        seen = set()
        at = self._skip(at + 1)
        while self._plain[at] != "}":
            key, end = self._decoder.raw_decode(self._plain, at)
            if key in seen:
                raise fail(self._file, line_of(self.text, at), f"the key {quoted(key)} is there twice; remove one")
            seen.add(key)
            start = self._skip(self._skip(end) + 1)
            end = self._decoder.raw_decode(self._plain, start)[1]
            yield key, at, Span(start, end)
            at = self._next(end)

    def _items(self, at: int) -> Iterator[Span]:
        at = self._skip(at + 1)
        while self._plain[at] != "]":
            end = self._decoder.raw_decode(self._plain, at)[1]
            yield Span(at, end)
            at = self._next(end)

    def _next(self, at: int) -> int:
        at = self._skip(at)
        return self._skip(at + 1) if self._plain[at] == "," else at

    def _skip(self, at: int) -> int:
        return _SPACE.match(self._plain, at).end()  # type: ignore[union-attr]  # matches nothing, too

    def _constant(self, name: str) -> None:
        raise fail(self._file, None, f"not valid JSON: {name} is no JSON value")


def quoted(text: str) -> str:
    """The text as a JSON string; ASCII only where it holds what UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def _blank(token: re.Match[str]) -> str:
    """Strings stay; all else becomes blanks, so that every place stays what it was."""
    return token[0] if token[1] is not None else _NOT_BREAK.sub(" ", token[0])
