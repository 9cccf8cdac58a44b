"""Words of an input that could be a secret which an earlier output held under a name that is gone by now."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

from services.capture.redaction.redactor import to_bytes

_MAX_TEXT = 16 * 1024
_SHORTEST, _LONGEST = 8, 256
_PART = re.compile(rb"[^=&?,;:@/<>(){}\[\]|\\]{8,128}")
_WORD = re.compile(rb"[^\s\x00\"'`]{8,256}")
_LETTER, _DIGIT = re.compile(rb"[A-Za-z]"), re.compile(rb"[0-9]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-]{16,256}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){8,128}")
# What encoded text is at least long: a shorter word without a digit can neither be a secret nor hide one.
_ENCODED = 16
_GAPS = bytes.maketrans(b"\x00\"'`", b"    ")


def tokens(value: Any) -> Iterator[bytes]:
    """Words with letters and digits of a JSON value's texts, their parts, and what base64, hex or percent-encoded
    ones say. Looks at the first 16 KiB."""
    text = to_bytes(value) if isinstance(value, str) else b"\x00".join(_texts(value))
    for word in _words(text[:_MAX_TEXT]):
        if len(word) < _ENCODED and b"%" not in word and _DIGIT.search(word) is None:
            continue
        parts = [word, *(p for p in _PART.findall(word) if p != word)]
        parts += [d for p in parts if len(p) >= _ENCODED or b"%" in p for d in _decoded(p)]
        for part in parts:
            if part[:1] not in b"-/~." and _DIGIT.search(part) and _LETTER.search(part):
                yield part


def _words(text: bytes) -> Iterable[bytes]:
    found = [word for word in dict.fromkeys(text.translate(_GAPS).split()) if len(word) >= _SHORTEST]
    if any(len(word) > _LONGEST for word in found):
        return dict.fromkeys(piece for word in found for piece in _WORD.findall(word))
    return found


def _decoded(word: bytes) -> list[bytes]:
    found: list[bytes] = []
    if b"%" in word:
        found.append(unquote_to_bytes(word))
    found += (text for run in _BASE64.findall(word) if (text := _printable(_from_base64(run))))
    found += (text for run in _HEX.findall(word) if (text := _printable(binascii.unhexlify(run))))
    return [part for text in found for part in (text, *_WORD.findall(text), *_PART.findall(text))]


def _from_base64(run: bytes) -> bytes:
    body = run.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    body = body[: len(body) - 1] if len(body) % 4 == 1 else body
    return binascii.a2b_base64(body + b"=" * (-len(body) % 4))


def _printable(text: bytes) -> bytes | None:
    """The text without blanks around it, if it is one."""
    if not text.isascii() or len(text) < _SHORTEST:
        return None
    if not text.decode("ascii").replace("\n", " ").replace("\t", " ").strip().isprintable():
        return None
    return text.strip()


def _texts(value: Any) -> list[bytes]:
    """Texts of a JSON value, in no particular order, up to what `tokens` looks at."""
    found: list[bytes] = []
    left = _MAX_TEXT
    stack = [value]
    while stack and left > 0:
        node = stack.pop()
        if isinstance(node, str):
            found.append(to_bytes(node))
            left -= len(node)
        elif isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
    return found
