"""Frames into JSON-RPC 2.0 messages, as MCP uses it in all its revisions (batches: 2025-03-26)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import orjson

from services.mcp_proxy.observer.frames import Frame
from services.mcp_proxy.observer.peek import last_members, members

MAX_BATCH = 1000
MAX_TEXT = 4096
"""Characters kept of an id, a method or a name while its request is open."""
_MAX_KEY = 128
_BOM = b"\xef\xbb\xbf"
_SAFE = 2**53

Kind = Literal["request", "notification", "result", "error", "invalid"]
IdType = Literal["string", "integer", "number", "null"]


@dataclass(frozen=True, slots=True)
class Id:
    """A JSON-RPC id: its text as it was written (a string without its quotes) and its JSON type. `key` is one for each
    id; `like` is the key of the number that another program may write for this one (1 for 1.0), where it differs.
    """

    text: str
    type: IdType
    key: str
    like: str | None = None


@dataclass(slots=True)
class Message:
    """One message. `params`, `result` and `error` are JSON values as they came; of a frame that was too large to be kept
    (`whole` is False) only what could be seen at its edges. `reason` says why a message is invalid.
    """

    kind: Kind
    size: int
    frame: Frame
    id: Id | None = None
    method: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    reason: str | None = None


def messages(frame: Frame) -> Iterator[Message]:
    """The messages of a frame; none for a blank line. Raises nothing."""
    body = frame.body
    if frame.cut is not None:
        yield Message("invalid", frame.size, frame, reason=frame.cut)
    elif body is None:
        yield _large(frame)
    else:
        try:
            value = orjson.loads(body)
        except ValueError:
            body = body.removeprefix(_BOM).strip()
            if not body:
                return
            try:
                # What orjson refuses and others send: NaN, lone surrogates, numbers of any length.
                value = json.loads(body)
            except (ValueError, RecursionError):
                yield Message("invalid", frame.size, frame, reason="not_json")
                return
        if not isinstance(value, list):
            yield _message(value, frame.size, frame, body)
            return
        if not value:
            yield Message("invalid", frame.size, frame, reason="empty_batch")
        for element in value[:MAX_BATCH]:
            written = _dumped(element)
            yield _message(element, len(written), Frame(len(written), written), written)
        if len(value) > MAX_BATCH:
            yield Message("invalid", frame.size, frame, reason="batch_too_long")


def _message(value: Any, size: int, frame: Frame, body: bytes) -> Message:
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return Message("invalid", size, frame, reason="not_jsonrpc")
    found = None
    if "id" in value:
        found = _id(value["id"], body)
        if found is None:
            return Message("invalid", size, frame, reason="bad_id")
    method = value.get("method")
    if isinstance(method, str):
        params = value.get("params")
        return Message(
            "request" if found else "notification",
            size,
            frame,
            found,
            method[:MAX_TEXT],
            params if isinstance(params, dict) else {} if params is None else {"params": params},
        )
    if method is not None or found is None:
        return Message("invalid", size, frame, reason="not_jsonrpc")
    error = value.get("error")
    if error is not None:
        return Message("error", size, frame, found, error=error if isinstance(error, dict) else {"message": error})
    if "result" in value:
        return Message("result", size, frame, found, result=value["result"])
    return Message("invalid", size, frame, reason="not_jsonrpc")


def _large(frame: Frame) -> Message:
    """What the edges of a large frame tell. A message whose id is at neither edge is none that anything can be told of."""
    found, open_name, rest = members(frame.head)
    for name, value in last_members(frame.tail).items():
        found.setdefault(name, value)
    names = {*found, open_name}
    where = Message("invalid", frame.size, frame, whole=False)
    if found.get("jsonrpc") != "2.0":
        where.reason = "large_unreadable"
        return where
    if "id" in found:
        where.id = _id(found["id"], None)
    method = found.get("method")
    if isinstance(method, str):
        where.kind = "request" if where.id else "notification"
        where.method = method[:MAX_TEXT]
        if open_name == "params":
            where.params = members(rest)[0]
    elif where.id is None:
        where.reason = "large_unreadable"
    elif "result" in names:
        where.kind = "result"
    elif "error" in names:
        where.kind = "error"
        error = found.get("error")
        where.error = error if isinstance(error, dict) else members(rest)[0] if open_name == "error" else {}
    else:
        where.reason = "large_unreadable"
    return where


def _id(value: Any, body: bytes | None) -> Id | None:
    """None for what JSON-RPC allows as no id."""
    if isinstance(value, str):
        return Id(value[:MAX_TEXT], "string", _key("s", value))
    if value is None:
        return Id("null", "null", "null")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and -_SAFE < value < _SAFE:
        text = str(value)
        return Id(text, "integer", "n" + text)
    text = _written(value, body)
    kind: IdType = "number" if any(mark in text for mark in ".eE") else "integer"
    try:
        near = float(value)
        like = str(int(near)) if near.is_integer() else repr(near)
    except (OverflowError, ValueError):
        like = text
    return Id(text, kind, _key("n", text), _key("n", like))


def _written(value: int | float, body: bytes | None) -> str:
    """A number as the sender wrote it."""
    if body is not None:
        try:
            raw = json.loads(body.removeprefix(_BOM), parse_float=str, parse_int=str).get("id")
        except (ValueError, RecursionError, AttributeError):
            raw = None
        if isinstance(raw, str):
            return raw
    return repr(value)


def _key(kind: str, text: str) -> str:
    if len(text) <= _MAX_KEY and text.isascii():
        return kind + text
    return f"{kind}#{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):
        pass
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        return b""
