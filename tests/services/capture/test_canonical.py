"""Canonical JSON: equal to the reference package wherever that has an answer, and defined where it has none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import canonical as module
from schemas.canonical import canonical

pytestmark = pytest.mark.unit

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(alphabet=st.characters(codec="utf-8"), max_size=8), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(json_values)
@example({"\U0001f600": 1, "\ufb33": 2, "a": 3})
@example([1e16, 1e21, 1e-7, 5e-324, -0.0, 0.1, 123456789012345.0, 333333333.33333329])
@example({"s": '\x00\x07\x1f\x7f\u2028\u20ac"\\/\b\f\n\r\t'})
@example(["1.5", "[1.5", ":1e5", ",1234567890123456"])
@settings(max_examples=400, deadline=None)
def test_it_equals_the_reference(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)
    assert module._slow(value) == rfc8785.dumps(value)


def test_the_vector_of_the_rfc() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    assert (
        canonical(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, b"null"),
        ([math.inf, -math.inf], b"[null,null]"),
        (2**53 + 1, b"9007199254740992"),
        (-(2**64), b"-18446744073709552000"),
        (10**400, b"null"),
        ("\ud800x\udfff", b'"\\ud800x\\udfff"'),
        ({"\ud800": 1, "a": 2}, b'{"a":2,"\\ud800":1}'),
        ({1: "a", None: "b"}, b'{"1":"a","None":"b"}'),
        ((1, [2, (3,)]), b"[1,[2,[3]]]"),
        ({"x": {1}}, b'{"x":"{1}"}'),
        (b"ab", b"\"b'ab'\""),
    ],
)
def test_what_lies_outside_of_json_is_defined(value: Any, expected: bytes) -> None:
    assert canonical(value) == expected


def test_order_and_spelling_do_not_matter() -> None:
    assert canonical({"b": 1.0, "a": [1]}) == canonical({"a": [1.0], "b": 1}) == b'{"a":[1],"b":1}'


def test_ten_thousand_levels_do_not_recurse() -> None:
    value: Any = 1
    for i in range(10_000):
        value = [value] if i % 2 else {"k": value}
    assert canonical(value).count(b"[") == 5000
