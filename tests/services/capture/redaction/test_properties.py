"""Promises that hold for any input: nothing planted comes through, twice is once, and what held no secret is
untouched."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.capture.redaction import Redactor
from tests.services.capture.samples import ANTHROPIC, AWS_ID, GITHUB, JWT, PEM, SLACK

pytestmark = pytest.mark.unit
RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)

SECRETS = [AWS_ID, SLACK, GITHUB, ANTHROPIC, JWT, PEM]
ENCODERS = [
    lambda t: t,
    lambda t: base64.b64encode(t.encode()).decode(),
    lambda t: base64.b64encode(b"prefix: " + t.encode() + b" suffix").decode(),
    lambda t: t.encode().hex(),
    lambda t: quote(t, safe=""),
    lambda t: orjson.dumps(t).decode(),
    lambda t: orjson.dumps(orjson.dumps({"inner": t}).decode()).decode(),
]
words = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@st.composite
def planted(draw: st.DrawFn) -> tuple[Any, str, str]:
    """A random JSON value with a secret, somehow encoded, at a random place: as a value, in a text, or as a key."""
    secret = draw(st.sampled_from(SECRETS))
    encoded = draw(st.sampled_from(ENCODERS))(secret)
    before = draw(st.sampled_from(["", " ", "\n", "x = ", "(", "key: ", "https://h.example/?a=1&k=", '"', "漢字 "]))
    after = draw(st.sampled_from(["", " ", "\n", ")", " trailing words", '"', "，"]))
    text = before + encoded + after
    node: Any = draw(
        st.sampled_from([text, {text: 1}, {"k": text}, [text], {"a": [{"b": text}]}, {"name": "x", "value": text}])
    )
    for _ in range(draw(st.integers(0, 3))):
        node = draw(st.sampled_from([[1, node], {"x": node, "y": 2}, [[node]], {"deep": {"er": node}}]))
    other = draw(json_values)
    return {"other": other, "planted": node}, secret, encoded


@given(planted())
@RELAXED
def test_a_planted_secret_never_comes_through(redactor: Redactor, case: tuple[Any, str, str]) -> None:
    value, secret, encoded = case
    done, findings = redactor.value(value)
    assert findings
    out = orjson.dumps(done, option=orjson.OPT_NON_STR_KEYS).decode()
    core = secret.splitlines()[2] if "\n" in secret else secret
    for form in (
        core,
        base64.b64encode(core.encode()).decode().rstrip("=")[4:-4],
        core.encode().hex(),
        quote(core, safe=""),
    ):
        assert form not in out
    assert encoded not in out
    text = redactor.text(orjson.dumps(value).decode()).text
    assert core not in text
    assert encoded not in text


@given(planted())
@RELAXED
def test_redacting_twice_is_redacting_once(redactor: Redactor, case: tuple[Any, str, str]) -> None:
    once, _ = redactor.value(case[0])
    twice, findings = redactor.value(once)
    assert twice == once
    assert findings == ()
    text = redactor.text(orjson.dumps(case[0]).decode()).text
    assert redactor.text(text).text == text


@given(st.text(alphabet=st.characters(), max_size=300))
@RELAXED
def test_any_text_is_settled_after_one_pass(redactor: Redactor, text: str) -> None:
    once = redactor.text(text).text
    once.encode()
    assert redactor.text(once).text == once


FRAGMENTS = [
    "password=",
    "token: ",
    '"secret": "',
    "Bearer ",
    "Authorization: ",
    "https://u:",
    "@h",
    "\\n",
    '\\"',
    "%3D",
    " ",
    "\n",
    "=",
    ";",
    "&x=",
    "hunter2",
    AWS_ID,
    SLACK,
    "a@b.cn",
    "13800138000",
    "4111111111111111",
    "eyJhbGciOiJub25lIn0",
    ".",
    "-----BEGIN RSA PRIVATE KEY-----",
    "\x00",
    "‹redacted:password:0123456789abcdef›",
    "--password ",
    "-----END RSA PRIVATE KEY-----",
    "Cookie: a=",
    "'",
    '"',
    "<password>",
    "</password>",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
@settings(RELAXED, max_examples=400)
def test_any_mixture_of_fragments_is_settled_after_one_pass(redactor: Redactor, text: str) -> None:
    once = redactor.text(text).text
    assert redactor.text(once).text == once


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {"values": [shape(v) for v in value.values()]}
    return [shape(v) for v in value] if isinstance(value, list) else 0


@given(json_values)
@RELAXED
def test_the_shape_of_a_value_is_kept(redactor: Redactor, value: Any) -> None:
    done, findings = redactor.value(value)
    if not findings:
        assert done == value
    assert shape(done) == shape(value)


@given(st.lists(st.sampled_from([AWS_ID, SLACK, GITHUB]), min_size=1, max_size=60), st.integers(0, 2000))
@settings(RELAXED, max_examples=40)
def test_many_secrets_in_a_long_text_are_all_found(redactor: Redactor, secrets: list[str], gap: int) -> None:
    text = ("\n" + "lorem ipsum dolor sit amet " * (gap // 27) + "\n").join(f"k{i}: {s}" for i, s in enumerate(secrets))
    done = redactor.text(text)
    assert len(done.findings) == len(secrets)
    assert not any(s in done.text for s in SECRETS)
