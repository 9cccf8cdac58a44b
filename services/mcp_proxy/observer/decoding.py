"""The content coding of an HTTP body (RFC 9110, 8.4.1): gzip and deflate are undone in the copy, others are not read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

MAX_DECODED = 64 << 20
"""Bytes made of one body; from there on it counts as one that cannot be read, whatever its coding unfolds to."""
_STEP = 1 << 18


class Unreadable(Exception):
    """The body cannot be read; the text says why, in one word."""


class Decoder:
    """`coding` is the Content-Encoding header, empty for none. `readable` is False for codings that are not known here."""

    def __init__(self, coding: str) -> None:
        self.coding = coding.strip().lower()
        self._made = 0
        self._inflate: zlib._Decompress | None = None
        self._start = b""
        self.readable = self.coding in ("", "identity", "gzip", "x-gzip", "deflate")
        if self.coding in ("gzip", "x-gzip"):
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes, in pieces of a bounded size. Raises Unreadable."""
        if not self.readable:
            raise Unreadable("coding")
        if self.coding == "deflate" and self._inflate is None:
            data = self._start = self._start + data
            if len(data) < 2:
                return
            # deflate is zlib's format (RFC 1950); some send the bare one.
            bare = data[0] & 0x0F != 8 or (data[0] << 8 | data[1]) % 31
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS)
        if self._inflate is None:
            yield data
            return
        full = False
        while data or full:
            if self._inflate.eof:
                if self.coding == "deflate":
                    return
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                piece = self._inflate.decompress(data, _STEP)
            except zlib.error as error:
                raise Unreadable("coding_broken") from error
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            full = len(piece) == _STEP and not self._inflate.eof
            self._made += len(piece)
            if self._made > MAX_DECODED:
                raise Unreadable("decoded_size")
            if piece:
                yield piece
