"""Other readings of a text: with escapes or percent-encoding undone, or what a base64 or hex run says. Each maps
back to its source."""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from services.capture.redaction.gate import BASE64_SHAPE, HEX_SHAPE

_CODE = re.compile(rb"u00([0-9a-fA-F]{2})|x([0-9a-fA-F]{2})")
_CHARS = {ord("n"): b"\n", ord("r"): b"\r", ord("t"): b"\t", **{c: bytes((c,)) for c in b"\"/'`"}}
_ESCAPES = tuple((b"\\" + bytes((c,)), made) for c, made in _CHARS.items() if c != ord("\\"))
_UNUSUAL = re.compile(rb"\\(?![nrt\"']|u00[0-9a-fA-F]{2}|x[0-9a-fA-F]{2})")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_BASE64_RUN = re.compile(
    rb"(?:[A-Za-z0-9+/]{60,}+\r?\n[ \t]*+)*+[A-Za-z0-9+/_\-]{20,}+={0,2}"
    rb"|(?:[A-Za-z0-9+/]{60,}+\r?\n[ \t]*+)++[A-Za-z0-9+/]*+={0,2}"
)
_BASE64_PRINTABLE = re.compile(BASE64_SHAPE)
_HEX_RUN = re.compile(rb"[0-9A-Fa-f]{2}(?:[ :]?[0-9A-Fa-f]{2}){11,}+")
_HEX_PRINTABLE = re.compile(HEX_SHAPE)


def _marks(alphabet: bytes) -> bytes:
    return bytes(c if c in alphabet else 0 for c in range(256))


_BASE64_MARKS = _marks(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-\r\n\t")
_HEX_MARKS = _marks(b"0123456789abcdefABCDEF: ")
_TOKEN_MARKS = _marks(bytes(set(range(33, 256)) - set(b"\"'<>`\\")))
_TOKEN = re.compile(rb"[^\x00\s\"'<>`\\]+")
_URLSAFE = bytes.maketrans(b"-_", b"+/")


class View:
    """The way back from a decoded text to its source: both run byte for byte but where one byte stands for an
    escape."""

    __slots__ = ("_at", "_end", "_source")

    def __init__(self, end: int) -> None:
        self._at = [0]
        self._source = [0]
        self._end = end

    def note(self, at: int, source_end: int) -> None:
        """The decoded byte `at` stands for an escape that ends before `source_end`."""
        start = self._source[-1] + at - self._at[-1]
        self._at += (at, at + 1)
        self._source += (start, source_end)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The span of the source that decoded bytes [start, end) were read from."""
        i = bisect_right(self._at, start) - 1
        j = bisect_right(self._at, end) - 1
        return self._source[i] + start - self._at[i], min(self._source[j] + end - self._at[j], self._end)


def escaped_lines(text: bytes, way_back: View | None = None) -> bytes:
    """Only the lines that hold a backslash, NUL for each gap: in most text that is little, and an escaped text has
    no line ends."""
    parts: list[bytes] = []
    size = begin = done = 0
    at = text.find(b"\\")
    while at >= 0:
        start = text.rfind(b"\n", done, at) + 1 or done
        if start > done:
            if done > begin:
                parts.append(text[begin:done])
                size += done - begin
            parts.append(b"\x00")
            if way_back is not None:
                way_back.note(size, start)
            size += 1
            begin = start
        done = text.find(b"\n", at) + 1 or len(text)
        at = text.find(b"\\", done)
    parts.append(text[begin:done])
    return b"".join(parts)


def unescaped(text: bytes, way_back: View | None = None) -> bytes:
    """The text with backslash escapes undone. Any number of backslashes counts as one: JSON in JSON in a string
    reads like the innermost."""
    if way_back is None:
        if b"\\\\" in text:
            first, *rest = text.split(b"\\")
            text = b"\\".join((first, *filter(None, rest[:-1]), rest[-1]))
        if _UNUSUAL.search(text) is None:
            # Of these, Python's own escapes say the same, ten times as fast.
            return text.decode("unicode_escape").encode("latin-1")
        if b"\\u00" not in text and b"\\x" not in text:
            for escape, made in _ESCAPES:
                text = text.replace(escape, made)
            return text
    parts = text.split(b"\\")
    out = [parts[0]]
    add = out.append
    at = size = len(parts[0])
    for part in parts[1:]:
        at += 1
        if not part:
            continue
        char = _CHARS.get(part[0])
        used = 1
        if char is None:
            code = _CODE.match(part) if part[0] in b"ux" else None
            if code is None:
                char, used = b"\\", 0
            else:
                char, used = bytes((int(code.group(1) or code.group(2), 16),)), code.end()
        add(char)
        add(part[used:])
        if way_back is not None:
            # From the end of what was copied before: all backslashes of a run belong to the character they make.
            way_back.note(size, at + used)
        at += len(part)
        size += 1 + len(part) - used
    if len(parts) > 1 and not parts[-1]:
        add(b"\\")
    return b"".join(out)


def unquoted(text: bytes, way_back: View | None = None) -> bytes:
    """The text with %XX undone once."""
    if way_back is None:
        return unquote_to_bytes(text)
    size = last = 0
    for m in _PERCENT.finditer(text):
        size += m.start() - last
        way_back.note(size, m.end())
        size += 1
        last = m.end()
    return unquote_to_bytes(text)


@dataclass(slots=True)
class Run:
    """A base64 or hex run and what it says. `wide`: encoded characters for each `narrow` decoded bytes; 0 = whole
    run only."""

    start: int
    end: int
    text: bytes
    offset: int
    wide: int
    narrow: int

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The encoded span of decoded bytes [start, end)."""
        if self.wide == 0:
            return self.start, self.end
        first = self.offset + start // self.narrow * self.wide
        last = self.offset + -(-end // self.narrow) * self.wide
        # A short rest (or padding) says nothing by itself, so it goes along.
        return first, self.end if self.end - last <= self.wide else last


def _around(text: bytes, ends: list[int], alphabet: bytes, run: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """The runs in which the gate saw a shape end, or all of them if it named no place."""
    if not ends:
        yield from run.finditer(text)
        return
    marks = text.translate(alphabet)
    done = 0
    for end in sorted(ends):
        if end <= done:
            continue
        start = marks.rfind(b"\x00", done, end) + 1 or done
        done = marks.find(b"\x00", end)
        done = len(text) if done < 0 else done
        yield from run.finditer(text, start, min(done + 3, len(text)))


def percent_tokens(text: bytes, ends: list[int]) -> Iterator[tuple[int, bytes]]:
    """(offset, token) of the words with %XX in them: percent-encoded text has no blanks."""
    for m in _around(text, ends, _TOKEN_MARKS, _TOKEN):
        if _PERCENT.search(m.group()):
            yield m.start(), m.group()


def base64_runs(text: bytes, ends: list[int]) -> Iterator[Run]:
    """Base64 runs (standard or URL alphabet, wrapped or not) that hold printable text, at each alignment that
    shows some."""
    for m in _around(text, ends, _BASE64_MARKS, _BASE64_RUN):
        start, end = m.span()
        run = m.group()
        clean = run if b"\n" not in run else b"".join(run.split())
        body = clean.rstrip(b"=").translate(_URLSAFE)
        for shift in {s.start() % 4 for s in _BASE64_PRINTABLE.finditer(body)}:
            part = body[shift:]
            part = part[: len(part) - 1] if len(part) % 4 == 1 else part
            decoded = binascii.a2b_base64(part + b"=" * (-len(part) % 4))
            if clean is run:
                yield Run(start, end, decoded, start + shift, 4, 3)
            else:
                yield Run(start, end, decoded, start, 0, 0)


def hex_runs(text: bytes, ends: list[int]) -> Iterator[Run]:
    """Hex runs (plain, or with a blank or colon between bytes) that hold printable text."""
    for m in _around(text, ends, _HEX_MARKS, _HEX_RUN):
        start, end = m.span()
        run = m.group()
        clean = run.translate(None, b" :")
        if not _HEX_PRINTABLE.search(clean):
            continue
        for shift in (0, 1):
            if _HEX_PRINTABLE.match(clean, shift) or _HEX_PRINTABLE.search(clean[shift:]):
                part = clean[shift:]
                decoded = binascii.unhexlify(part[: len(part) // 2 * 2])
                if clean == run:
                    yield Run(start, end, decoded, start + shift, 2, 1)
                else:
                    yield Run(start, end, decoded, start, 0, 0)
