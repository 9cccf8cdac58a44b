"""TOML 1.0 with places: `tomllib` says what it means, tree-sitter's grammar where it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import tree_sitter
import tree_sitter_toml

from services.mcp_proxy.wrap.document import BOM, FIELDS, Entry, Span, Value, fail, line_start
from services.mcp_proxy.wrap.jsonc import quoted

_DATES = ("local_date", "local_time", "local_date_time", "offset_date_time")
_VALUES = frozenset(("string", "integer", "float", "comment", *_DATES))
_KEYS = ("bare_key", "quoted_key")
_AT = re.compile(r" \(at line (\d+), column \d+\)")


class Toml:
    """See `document.Document`. Raises UserError with file and line for what is no TOML; a file with a key twice is none."""

    def __init__(self, text: str, file: str, containers: Sequence[tuple[str, ...]]) -> None:
        self.text = text
        self.entries: list[Entry] = []
        plain = " " + text[1:] if text[:1] == BOM else text
        if not plain.strip():
            raise fail(file, 1, "the file is empty; a client's configuration has its servers below [mcp_servers.NAME]")
        try:
            self.meaning: Any = tomllib.loads(plain)
        except tomllib.TOMLDecodeError as error:
            found = _AT.search(str(error))
            line = int(found[1]) if found else plain.count("\n") + 1
            raise fail(file, line, f"not valid TOML: {_AT.sub('', str(error))}") from None
        except RecursionError:
            raise fail(file, None, "not valid TOML: nested too deeply") from None
        data = plain.encode()
        # tree-sitter counts bytes, the text has characters.
        widths = accumulate((len(character.encode()) for character in plain), initial=0)
        self._places = None if plain.isascii() else {at: index for index, at in enumerate(widths)}
        self._root = tree_sitter.Parser(_language()).parse(data).root_node
        if self._root.has_error:
            bad = next((node for node in _walk(self._root) if node.is_error or node.is_missing), self._root)
            raise fail(file, bad.start_point.row + 1, "this part cannot be edited safely; write it in a plainer way")
        for container in containers:
            self._find(container, file)

    def quote(self, text: str) -> str:
        # A basic string is a JSON string, but for DEL, which TOML wants escaped.
        return quoted(text).replace("\x7f", "\\u007f")

    def values(self) -> Iterator[Span]:
        for node in _walk(self._root):
            if node.type in _VALUES:
                yield self._span(node)

    def _find(self, container: tuple[str, ...], file: str) -> None:
        servers: Any = self.meaning
        for step in container:
            servers = servers.get(step, {})
            if not isinstance(servers, dict):
                raise fail(file, None, f"'{step}' must be a table")
        depth = len(container) + 1
        lines: dict[tuple[str, ...], int] = {}
        fields: dict[tuple[str, ...], dict[str, Value]] = {}
        for path, node, inline in _places(self._root):
            if len(path) < depth or path[: depth - 1] != container:
                continue
            lines.setdefault(path[:depth], node.start_point.row + 1)
            if node.type == "pair" and len(path) == depth + 1 and path[-1] in FIELDS:
                fields.setdefault(path[:depth], {})[path[-1]] = self._value(node, inline)
        for where, line in lines.items():
            self.entries.append(Entry(where, line, servers[where[-1]], fields.get(where, {})))

    def _value(self, pair: tree_sitter.Node, inline: bool) -> Value:
        key, value = (child for child in pair.named_children if child.type != "comment")
        items = (child for child in value.named_children if child.type != "comment") if value.type == "array" else ()
        start = self._span(pair).start
        last = list(_leaves(key))[-1]
        lead = self.text[start : self._span(last).start] + "args = "
        line_break = "\r\n" if "\r\n" in self.text else "\n"
        trail = ", " if inline else line_start(self.text, start) or line_break
        return Value(start, self._span(value), tuple(self._span(item) for item in items), lead, trail)

    def _span(self, node: tree_sitter.Node) -> Span:
        if self._places is None:
            return Span(node.start_byte, node.end_byte)
        return Span(self._places[node.start_byte], self._places[node.end_byte])


@lru_cache(maxsize=1)
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_toml.language())


def _walk(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def _leaves(key: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    return (node for node in _walk(key) if node.type in _KEYS)


def _path(key: tree_sitter.Node) -> tuple[str, ...]:
    return tuple(_text(leaf) for leaf in _leaves(key))


def _text(leaf: tree_sitter.Node) -> str:
    raw = (leaf.text or b"").decode()
    return raw if leaf.type == "bare_key" else next(iter(tomllib.loads(f"{raw} = 0")))


def _places(root: tree_sitter.Node) -> Iterator[tuple[tuple[str, ...], tree_sitter.Node, bool]]:
    """Full key, node (pair or table), and whether it is in an inline table; what is below an array has no place."""
    for child in root.named_children:
        if child.type == "pair":
            yield from _pair((), child, False)
        elif child.type == "table":
            header, *pairs = (node for node in child.named_children if node.type != "comment")
            prefix = _path(header)
            yield prefix, child, False
            for pair in pairs:
                yield from _pair(prefix, pair, False)


def _pair(
    prefix: tuple[str, ...], pair: tree_sitter.Node, inline: bool
) -> Iterator[tuple[tuple[str, ...], tree_sitter.Node, bool]]:
    key, value = (node for node in pair.named_children if node.type != "comment")
    path = (*prefix, *_path(key))
    yield path, pair, inline
    if value.type == "inline_table":
        for child in value.named_children:
            if child.type == "pair":
                yield from _pair(path, child, True)
