"""Payloads damaged in the ways that JSON can be: fields lost, doubled, renamed, of other types and sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "x", "mcp__", "mcp__a__b", "<tool_use_error>", "Exit code 5", "Exit code: 5\n", "\x00", "é" * 300]
    )
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, payloads: Sequence[Any]) -> Any:
    """One of the payloads with up to four places changed."""
    payload = copy.deepcopy(draw(st.sampled_from(payloads)))
    for _ in range(draw(st.integers(1, 4))):
        holder, place = draw(st.sampled_from(list(_places(payload)) or [(payload, None)]))
        kind = draw(st.sampled_from(["replace", "delete", "copy", "nest"]))
        if place is None:
            continue
        if kind == "replace":
            holder[place] = draw(VALUES)
        elif kind == "delete":
            del holder[place]
        elif kind == "nest":
            holder[place] = draw(st.sampled_from([[holder[place]], {"name": holder[place]}]))
        else:
            holder[place] = copy.deepcopy(draw(st.sampled_from([holder, payload])))
    return payload


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])
