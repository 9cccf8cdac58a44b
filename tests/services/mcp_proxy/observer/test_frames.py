"""From bytes to messages: lines, server-sent events, content codings, large frames, ids as they were written."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.capture.content import MAX_HASHED_BYTES
from services.mcp_proxy.observer.decoding import MAX_DECODED, Decoder, Unreadable
from services.mcp_proxy.observer.frames import EDGE, Frame, Gather, Lines, Room
from services.mcp_proxy.observer.messages import messages
from services.mcp_proxy.observer.peek import last_members, members
from services.mcp_proxy.observer.sse import Events
from tests.services.mcp_proxy.observer.driving import CAPTURE

pytestmark = pytest.mark.unit

SECRET = "AKIAIOSFODNN7EXAMPLE"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def lines(*chunks: bytes, room: Room | None = None) -> list[Frame]:
    reader = Lines(room or Room(CAPTURE))
    return [frame for chunk in chunks for frame in reader.feed(chunk)] + list(reader.end())


places = st.lists(st.integers(0, 400), max_size=8)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30), max_size=8), places)
def test_a_frame_ends_at_line_feed_and_nowhere_else(texts: list[str], where: list[int]) -> None:
    texts = [f"{text}\u2028\u2029\r\x85é" for text in texts]
    found = lines(*cut("".join(f"{text}\n" for text in texts).encode(), where))
    assert [frame.body for frame in found] == [text.encode() for text in texts]
    assert all(frame.cut is None for frame in found)


def test_what_has_no_line_feed_at_the_end_is_told_as_unfinished() -> None:
    assert [frame.cut for frame in lines(b"{}\n{", b"1")] == [None, "unfinished"]


@pytest.mark.parametrize("size", [MAX_HASHED_BYTES - 1, MAX_HASHED_BYTES, MAX_HASHED_BYTES + 1, 3 << 20])
def test_a_large_frame_is_hashed_as_a_whole_and_kept_by_its_edges(size: int) -> None:
    body = bytes(65 + n % 26 for n in range(997)) * (size // 997 + 1)
    body = body[:size]
    (frame,) = lines(*(body[at : at + 60_000] for at in range(0, size, 60_000)), b"\n")
    assert frame.size == size
    if size <= MAX_HASHED_BYTES:
        assert frame.body == body
    else:
        assert frame.body is None
        assert frame.hash == CAPTURE.raw_hash(body)
        assert frame.head == body[: len(frame.head)]
        assert frame.tail == body[-EDGE:]


@pytest.mark.parametrize("offset", [0, 262_140, 1_300_000, 2_000_000 - 20])
def test_secrets_of_a_large_frame_are_found_wherever_they_are(offset: int) -> None:
    body = (b"x " * 1_000_000)[:2_000_000]
    body = body[:offset] + f" {SECRET} ".encode() + body[offset:]
    (frame,) = lines(*(body[at : at + 65_536] for at in range(0, len(body), 65_536)), b"\n")
    assert [finding.kind for finding in frame.findings] == ["aws_access_key"]
    assert frame.findings[0].fingerprint == CAPTURE.redactor.fingerprint(SECRET.encode())


def test_all_frames_together_hold_a_bounded_number_of_bytes() -> None:
    room = Room(CAPTURE, limit=1 << 20)
    gathers = [Gather(room) for _ in range(200)]
    for _ in range(4):
        for gather in gathers:
            gather.add(b"y" * 20_000)
            assert room.held <= 1 << 20
    frames = [gather.take() for gather in gathers]
    assert [frame.size for frame in frames] == [80_000] * 200
    assert all(frame.body == b"y" * 80_000 or frame.hash == CAPTURE.raw_hash(b"y" * 80_000) for frame in frames)
    assert any(frame.body for frame in frames)
    assert any(frame.body is None for frame in frames)
    assert room.held == 0


def test_what_is_dropped_is_held_no_more() -> None:
    room = Room(CAPTURE)
    for size in (10, MAX_HASHED_BYTES + 1):
        gather = Gather(room)
        gather.add(b"z" * size)
        assert gather.drop() == size
    assert room.held == 0


# server-sent events


def events(*chunks: bytes) -> list[tuple[str, bytes | None, str | None]]:
    parser = Events(Room(CAPTURE))
    return [(event.type, event.data.body, event.id) for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [("message", b"a", None)]),
        (b"data:a\r\n\r\n", [("message", b"a", None)]),
        (b"data: a\rdata: b\r\r", [("message", b"a\nb", None)]),
        (b"data\n\n", [("message", b"", None)]),
        (b"data:  two\n\n", [("message", b" two", None)]),
        (b": comment\n\ndata: a\n: x\n\n", [("message", b"a", None)]),
        (b"event: endpoint\ndata: /m?s=1\n\n", [("endpoint", b"/m?s=1", None)]),
        (b"id: 7\nretry: 10\ndata:\n\ndata: a\n\n", [("message", b"", "7"), ("message", b"a", None)]),
        (b"id: 7\ndata: a\n\nid: a\0b\ndata: b\n\n", [("message", b"a", "7"), ("message", b"b", None)]),
        (b"id: 7\ndata: a\n\nid\ndata: c\n\n", [("message", b"a", "7"), ("message", b"c", "")]),
        (b"event: x\n\ndata: a\n\n", [("message", b"a", None)]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a", None)]),
        (b"data: a\n", []),
        (b"dat: a\nfoo\n\n", []),
        (b"\n\n\n", []),
    ],
)  # fmt: skip
def test_events_are_read_as_the_standard_says_however_they_are_cut(stream: bytes, expected: Any) -> None:
    assert events(stream) == expected
    assert events(*(stream[at : at + 1] for at in range(len(stream)))) == expected
    for at in range(len(stream)):
        assert events(stream[:at], stream[at:]) == expected


_line = st.sampled_from(
    [b"data: x", b"data:", b"data", b"id: 1", b"event: e", b": c", b"retry: 1", b"", b"zz", b"data:\xe2\x80\xa8"]
)
_ending = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(_line, _ending), max_size=20), places)
def test_cuts_change_no_event(parts: list[tuple[bytes, bytes]], where: list[int]) -> None:
    stream = b"".join(line + ending for line, ending in parts) + b"."
    assert events(*cut(stream, where)) == events(stream)


def test_a_large_event_is_a_large_frame() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 3, "result": "r" * 2_000_000}).encode()
    stream = b"id: 9\ndata: " + body + b"\n\n"
    parser = Events(Room(CAPTURE))
    (event,) = (e for at in range(0, len(stream), 50_000) for e in parser.feed(stream[at : at + 50_000]))
    assert (event.data.size, event.data.body, event.id) == (len(body), None, "9")
    assert event.data.hash == CAPTURE.raw_hash(body)


def test_a_long_line_that_is_no_data_is_not_kept() -> None:
    parser = Events(Room(CAPTURE))
    assert list(parser.feed(b": " + b"c" * 100_000)) == []
    assert len(parser._line) < 5000
    assert [event.data.body for event in parser.feed(b"\ndata: a\n\n")] == [b"a"]


# content codings


@pytest.mark.parametrize("where", [[], [1], [5, 6, 7], list(range(40))])
@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", lambda data: gzip.compress(data[:3]) + gzip.compress(data[3:])),
        ("deflate", zlib.compress),
        ("Deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_codings_are_undone(coding: str, pack: Any, where: list[int]) -> None:
    data = b'{"jsonrpc": "2.0"}' * 20
    decoder = Decoder(coding)
    assert b"".join(piece for chunk in cut(pack(data), where) for piece in decoder.feed(chunk)) == data


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("size", [(1 << 18) + 100, 5_000_000])
def test_what_unfolds_to_much_is_whole(size: int, step: int) -> None:
    # Of the bare format nothing follows the last byte: all may be taken in before all is given out.
    packed = zlib.compress(b"\0" * size)[2:-4]
    decoder = Decoder("deflate")
    made = [piece for at in range(0, len(packed), step) for piece in decoder.feed(packed[at : at + step])]
    assert sum(map(len, made)) == size
    assert max(map(len, made)) <= 1 << 18


def test_a_bomb_is_given_up() -> None:
    decoder = Decoder("gzip")
    bomb = gzip.compress(b"\0" * (MAX_DECODED + 1))
    with pytest.raises(Unreadable, match="decoded_size"):
        for at in range(0, len(bomb), 1000):
            assert all(len(piece) <= 1 << 18 for piece in decoder.feed(bomb[at : at + 1000]))


@pytest.mark.parametrize(("coding", "data"), [("br", b"x"), ("zstd", b"x"), ("gzip", b"not gzip"), ("gzip, br", b"x")])
def test_what_cannot_be_decoded_says_so(coding: str, data: bytes) -> None:
    with pytest.raises(Unreadable):
        list(Decoder(coding).feed(data))


# messages


def only(body: bytes) -> Any:
    (found,) = messages(Frame(len(body), body))
    return found


@pytest.mark.parametrize(
    ("written", "text", "kind"),
    [
        ("1", "1", "integer"),
        ('"1"', "1", "string"),
        ("1.0", "1.0", "number"),
        ("1e2", "1e2", "number"),
        ("9007199254740993", "9007199254740993", "integer"),
        ("123456789012345678901234567890", "123456789012345678901234567890", "integer"),
        ("-7", "-7", "integer"),
        ("null", "null", "null"),
        ('""', "", "string"),
        ('"\\u00e9"', "é", "string"),
    ],
)
def test_an_id_keeps_its_type_and_its_spelling(written: str, text: str, kind: str) -> None:
    found = only(b'{"jsonrpc":"2.0","params":{"id":5},"id":' + written.encode() + b',"method":"m"}')
    assert (found.kind, found.id.text, found.id.type) == ("request", text, kind)


def test_ids_of_different_types_are_different() -> None:
    ids = ["1", '"1"', "1.0", '"null"', "null", "9007199254740992", "9007199254740993"]
    keys = {only(f'{{"jsonrpc":"2.0","id":{one},"result":{{}}}}'.encode()).id.key for one in ids}
    assert len(keys) == len(ids)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"Server started on port 3000", "not_json"),
        (b'{"jsonrpc":"2.0","id":1', "not_json"),
        (b"\xff\xfe{}", "not_json"),
        (b"[" * 5000, "not_json"),
        (b"{}", "not_jsonrpc"),
        (b"3", "not_jsonrpc"),
        (b'{"level":"info","method":"GET","id":3}', "not_jsonrpc"),
        (b'{"jsonrpc":"1.0","id":3,"result":1}', "not_jsonrpc"),
        (b'{"jsonrpc":"2.0","id":3}', "not_jsonrpc"),
        (b'{"jsonrpc":"2.0","method":7,"id":3}', "not_jsonrpc"),
        (b'{"jsonrpc":"2.0","result":7}', "not_jsonrpc"),
        (b'{"jsonrpc":"2.0","id":[1],"method":"m"}', "bad_id"),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', "bad_id"),
        (b"[]", "empty_batch"),
    ],
)
def test_what_is_no_message_says_why(body: bytes, reason: str) -> None:
    found = only(body)
    assert (found.kind, found.reason, found.size) == ("invalid", reason, len(body))


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}\r',
        b'  {"jsonrpc":"2.0","id":1,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":NaN,"y":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}',
    ],
)
def test_what_others_read_is_read(body: bytes) -> None:
    assert only(body).kind == "request"


@pytest.mark.parametrize("body", [b"", b" ", b"\r", b"\xef\xbb\xbf"])
def test_a_blank_line_is_nothing(body: bytes) -> None:
    assert list(messages(Frame(len(body), body))) == []


def test_a_batch_is_its_messages_and_a_bounded_number_of_them() -> None:
    batch = [{"jsonrpc": "2.0", "id": n, "method": "m"} for n in range(1500)]
    found = list(messages(Frame(0, json.dumps([*batch[:2], 7]).encode())))
    assert [one.kind for one in found] == ["request", "request", "invalid"]
    found = list(messages(Frame(0, json.dumps(batch).encode())))
    assert (len(found), found[-1].reason) == (1001, "batch_too_long")


# large frames


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-100, 100)
    | st.text(max_size=8)
    | st.sampled_from(['"', "\\", '\\"', "}{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=5), st.booleans(), st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_the_edges_tell_is_true(value: dict[str, Any], ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert members(text)[0] == value
    assert last_members(text) == value
    at = data.draw(st.integers(0, len(text)))
    found, open_name, _ = members(text[:at])
    assert found.items() <= value.items() or all(found[name] == value[name] for name in found)
    assert open_name is None or open_name in value
    tail = last_members(text[at:])
    assert all(name in value and tail[name] == value[name] for name in tail)


@pytest.mark.parametrize("last", [False, True])
def test_a_large_message_tells_its_id_and_kind(last: bool) -> None:
    big = "r" * 1_200_000
    made = {"jsonrpc": "2.0", "id": 5, "result": {"content": [{"text": big}]}}
    if last:
        made = {"result": made["result"], "id": made["id"], "jsonrpc": "2.0"}
    raw = json.dumps(made).encode()
    (found,) = messages(lines(raw + b"\n")[0])
    assert (found.kind, found.id.text, found.whole) == ("result", "5", False)
    call = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "w", "arguments": {"x": big}}}
    (found,) = messages(lines(json.dumps(call).encode() + b"\n")[0])
    assert (found.kind, found.method, found.params["name"]) == ("request", "tools/call", "w")
    failed = {"jsonrpc": "2.0", "id": 6, "error": {"code": -32000, "message": "m", "data": big}}
    (found,) = messages(lines(json.dumps(failed).encode() + b"\n")[0])
    assert (found.kind, found.error["code"], found.id.text) == ("error", -32000, "6")


def test_a_large_frame_that_is_no_message_says_so() -> None:
    (found,) = messages(lines(b"#" * 1_200_000 + b"\n")[0])
    assert (found.kind, found.reason) == ("invalid", "large_unreadable")
