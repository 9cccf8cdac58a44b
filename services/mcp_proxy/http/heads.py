"""Heads of HTTP/1.x messages: read strictly, changed where a proxy must, all other bytes kept (RFC 9110, RFC 9112).

What could be read in two ways (a bare line feed, a folded line, a length told twice or besides a transfer coding) is
refused: such a head may mean one thing here and another at the server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from services.mcp_proxy.http.bodies import Body, Chunked, Length, Tunnel, UntilClose

MAX_HEAD = 64 << 10
"""Bytes of a head; Node and nginx stop earlier."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_FIELDS = rb"((?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n)*+)\r\n"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]++) HTTP/1\.([01])\r\n" + _FIELDS)
_ANSWER = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*+)?\r\n" + _FIELDS)
_FIELD = re.compile(rb"([^:]++):[ \t]*+([^\r]*+)\r\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_LONE_LF = re.compile(rb"(?<!\r)\n")
_BEGIN_REQUEST = re.compile(_TOKEN + rb"(?: |\Z)")
_BEGIN_ANSWER = re.compile(rb"HTTP/1\.[01] |\Z")


class BadHead(Exception):
    """A head that is refused; the text says why."""


@dataclass(slots=True)
class Request:
    """The head of a request. `fields` has lower-case names; a repeated field is joined by comma."""

    method: bytes
    target: bytes
    fields: dict[bytes, bytes]
    body: Body
    keep: bool
    """Whether the client means to send another request after this one."""

    def upgrades_to_h2(self) -> bool:
        """Whether it offers to go on in HTTP/2, which could not be followed here."""
        return b"h2c" in self.fields.get(b"upgrade", b"").lower()


@dataclass(slots=True)
class Answer:
    """The head of an answer."""

    status: int
    fields: dict[bytes, bytes]
    body: Body
    keep: bool
    told: dict[str, Any] | None = None
    """What the tap says of it."""

    @property
    def interim(self) -> bool:
        """1xx: another answer follows. 101 is the last one."""
        return self.status < 200 and self.status != 101


def read_request(head: bytes) -> Request:
    """A whole head, blank line included. Raises BadHead."""
    found = _REQUEST.fullmatch(head)
    if found is None:
        raise BadHead(_why(head, "request"))
    method, target, minor, lines = found.groups()
    fields = _fields(lines)
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if b"," in fields.get(b"host", b""):
        raise BadHead("more than one Host")
    body: Body
    if coding is not None:
        if length is not None:
            raise BadHead("both Content-Length and Transfer-Encoding")
        if minor == b"0" or not _is_chunked(coding):
            raise BadHead("a Transfer-Encoding that does not end in chunked")
        body = Chunked()
    else:
        body = Length(0 if length is None else _length(length))
    return Request(method, target, fields, body, _keeps(minor, fields))


def read_answer(head: bytes, method: bytes) -> Answer:
    """The head of an answer to such a request. Raises BadHead."""
    found = _ANSWER.fullmatch(head)
    if found is None:
        raise BadHead(_why(head, "answer"))
    minor, code, lines = found.groups()
    fields, status = _fields(lines), int(code)
    keep = _keeps(minor, fields)
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None and length is not None:
        raise BadHead("both Content-Length and Transfer-Encoding")
    size = None if length is None else _length(length)
    body: Body
    if status == 101:
        body, keep = Tunnel(), False
    elif method == b"HEAD" or status in {204, 304} or status < 200:
        body = Length(0)
    elif coding is not None:
        # RFC 9112 section 6.1: in an answer of HTTP/1.0 the framing is not to be trusted beyond this message.
        body, keep = (Chunked(), keep and minor == b"1") if _is_chunked(coding) else (UntilClose(), False)
    elif size is not None:
        body = Length(size)
    else:
        body, keep = UntilClose(), False
    return Answer(status, fields, body, keep)


def check_beginning(data: bytes, *, answer: bool = False) -> None:
    """Bytes that are not a whole head yet. Raises BadHead once they cannot become one."""
    begin, what = (_BEGIN_ANSWER, "answer") if answer else (_BEGIN_REQUEST, "request")
    if len(data) > MAX_HEAD or _LONE_LF.search(data):
        raise BadHead(_why(data, what))
    known = data[:12] if answer else data[:64]
    if answer and not (begin.match(known) or b"HTTP/1.1 "[: len(data)] == data or b"HTTP/1.0 "[: len(data)] == data):
        raise BadHead(_why(data, what))
    if not answer and not begin.match(known):
        raise BadHead(_why(data, what))


def rewrite(head: bytes, line: bytes, values: dict[bytes, bytes], without: Sequence[bytes] = ()) -> bytes:
    """The head with another first line, other values for the fields named in lower case, and without some fields."""
    head = line + head[head.index(b"\r\n") :]
    for name, value in values.items():
        found = _place(name).search(head)
        if found is not None:
            head = head[: found.start(1)] + value + head[found.end(1) :]
    for name in without:
        head = _place(name).sub(b"", head)
    return head


@lru_cache(maxsize=8)
def _place(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\r\n" + re.escape(name) + rb":[ \t]*+([^\r]*+)", re.IGNORECASE)


# parts


def _fields(lines: bytes) -> dict[bytes, bytes]:
    found = _FIELD.findall(lines)
    fields = {name.lower(): value.rstrip(b" \t") for name, value in found}
    if len(fields) < len(found):
        fields = {}
        for name, value in found:
            name, value = name.lower(), value.rstrip(b" \t")
            fields[name] = fields[name] + b", " + value if name in fields else value
    return fields


def _length(value: bytes) -> int:
    if not _LENGTH.fullmatch(value):
        raise BadHead("a Content-Length that is not one number")
    return int(value)


def _is_chunked(coding: bytes) -> bool:
    codings = [part.strip(b" \t").lower() for part in coding.split(b",")]
    return codings[-1] == b"chunked" and codings.count(b"chunked") == 1


def _keeps(minor: bytes, fields: dict[bytes, bytes]) -> bool:
    connection = fields.get(b"connection")
    if connection is None:
        return minor == b"1"
    options = [part.strip(b" \t") for part in connection.lower().split(b",")]
    return b"close" not in options if minor == b"1" else b"keep-alive" in options


def _why(head: bytes, what: str) -> str:
    if head[:1] == b"\x16":
        return "TLS where plain HTTP is spoken; use http:// for this address"
    if len(head) > MAX_HEAD:
        return f"a head of more than {MAX_HEAD} bytes"
    if _LONE_LF.search(head):
        return "a line that ends in LF alone"
    if b"\r\n " in head or b"\r\n\t" in head:
        return "a folded header line"
    return f"not the head of an HTTP/1.1 {what}"
