"""Canonical JSON (RFC 8785): one byte string per JSON value, so that a hash names a value and not a spelling.

RFC 8785 covers I-JSON only. What lies outside is written as ECMAScript's JSON.stringify writes it, so that a runtime
in JavaScript and a proxy in Python agree: NaN and ±Infinity as `null`, integers beyond 2^53 as the nearest double,
lone surrogates as `\\udXXX`. Anything that is no JSON value is written as the string `str()` gives.
"""

from __future__ import annotations

import math
import re
from typing import Any

import orjson
import re2
import rfc8785

_SAFE = 2**53 - 1
_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
# A number that orjson may not write as RFC 8785 does: a fraction, an exponent, or 16 digits and more. Texts can look
# like one; they only cost the slow path.
_ODD_NUMBER = re2.compile(rb"(?:^|[\[,:])-?(?:[0-9]{16}|[0-9]+[.eE])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _NotPlain(Exception):
    pass


def _refuse(_: object) -> Any:
    raise _NotPlain


def canonical(value: Any) -> bytes:
    """The RFC 8785 form of a JSON value, UTF-8. Never raises, at any depth of nesting."""
    try:
        fast = orjson.dumps(value, default=_refuse, option=_OPTIONS)
    except (TypeError, ValueError):
        # No JSON type, lone surrogate, nested too deeply, huge integer.
        return _slow(value)
    # All ASCII: then every key is, and code point order is UTF-16 order.
    if fast.isascii() and _ODD_NUMBER.search(fast) is None:
        return fast
    return _slow(value)


class _Written(bytes):
    """What is already in its final form."""


_COMMA = _Written(b",")
_OPEN, _CLOSE, _BEGIN, _END = _Written(b"["), _Written(b"]"), _Written(b"{"), _Written(b"}")


def _slow(value: Any) -> bytes:
    out: list[bytes] = []
    stack: list[Any] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, _Written):
            out.append(node)
        elif isinstance(node, dict):
            names = {_text(k): v for k, v in node.items()}
            stack.append(_END)
            for i, key in enumerate(sorted(names, key=_utf16, reverse=True), 1):
                stack += (names[key], _Written(_string(key) + b":"))
                if i < len(names):
                    stack.append(_COMMA)
            stack.append(_BEGIN)
        elif isinstance(node, (list, tuple)):
            stack.append(_CLOSE)
            for i in range(len(node) - 1, -1, -1):
                stack.append(node[i])
                if i:
                    stack.append(_COMMA)
            stack.append(_OPEN)
        else:
            out.append(_scalar(node))
    return b"".join(out)


def _scalar(node: Any) -> bytes:
    if node is None:
        return b"null"
    if isinstance(node, bool):
        return b"true" if node else b"false"
    if isinstance(node, int):
        if -_SAFE <= node <= _SAFE:
            return b"%d" % node
        try:
            node = float(node)
        except OverflowError:
            return b"null"
    if isinstance(node, float):
        return rfc8785.dumps(float(node)) if math.isfinite(node) else b"null"
    return _string(_text(node))


def _text(node: Any) -> str:
    return node if isinstance(node, str) else str(node)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _string(text: str) -> bytes:
    try:
        return orjson.dumps(text)
    except TypeError:
        parts = _SURROGATE.split(text)
        codes = [b"\\u%04x" % ord(c) for c in _SURROGATE.findall(text)]
        pieces = [orjson.dumps(p)[1:-1] for p in parts]
        return b'"' + pieces[0] + b"".join(c + p for c, p in zip(codes, pieces[1:], strict=True)) + b'"'
