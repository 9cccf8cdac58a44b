"""No event is larger than a record may be, whatever is in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import EVENT
from schemas.identity import new_delivery_id
from schemas.topics import MAX_VALUE_BYTES
from services.collector.fit import fit

from .running import capture

pytestmark = pytest.mark.unit

BIG = 700_000


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "event_name": name,
        "event_id": new_delivery_id(),
        "timestamp": "2026-11-30T20:06:12.123Z",
        "source_adapter": "mcp_proxy/1",
        "producer": {"id": "p", "epoch": 1, "seq": 7},
        **fields,
    }


OBSERVED = {"size_bytes": 1, "hash": "h", "reason": "r"}
TOOL = {"name": "t" * 300, "fingerprint": "f" * 64, "description_hash": "d" * 64, "schema_hash": "s" * 64}
LARGE = {
    "native": event("agent.event.observed", **OBSERVED, native={"a": "x" * BIG}),
    "labels": event("agent.event.observed", **OBSERVED, labels={f"k{n}": "x" * 100 for n in range(9000)}),
    "summary": event("user.prompt.submitted", content={"size_bytes": 1, "summary": "x" * BIG}),
    "reason": event("agent.event.observed", size_bytes=1, hash="h", reason="x" * BIG),
    "hash": event("agent.payload.quarantined", size_bytes=1, hash="x" * BIG, reason="oversized"),
    "tools": event("mcp.tools.listed", mcp_server="files", count=5000, tools=[TOOL] * 5000),
    "session": event("agent.event.observed", **OBSERVED, session_id="é" * BIG),
    "everything": event(
        "mcp.tools.listed", mcp_server="x" * BIG, count=1, tools=[dict.fromkeys(TOOL, "x" * 4000)] * 300
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_an_event_too_large_is_cut_or_told_by_size_and_hash(name: str) -> None:
    given_event = LARGE[name]
    kept, written = fit(given_event, capture().raw_hash)
    assert orjson.loads(written) == kept
    assert len(orjson.dumps(kept)) <= MAX_VALUE_BYTES
    EVENT.validate_json(orjson.dumps(kept))
    assert (kept["event_id"], kept["producer"]) == (given_event["event_id"], given_event["producer"])
    if kept["event_name"] == given_event["event_name"]:
        assert kept["native"] == {"agenttrace_cut": True}
    else:
        assert kept["reason"] == "event_too_large"
        assert (kept["size_bytes"], kept["detail"]) == (len(orjson.dumps(given_event)), given_event["event_name"])
        assert kept["hash"].startswith("hmac-sha256:")


def test_what_fits_is_not_touched() -> None:
    small = event("agent.event.observed", **OBSERVED, native={"a": 1})
    assert fit(small, capture().raw_hash)[0] is small


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.integers(0, 9) | st.sampled_from(["x" * 30_000, "é" * 9_000, "\x00" * 20_000]),
        lambda inner: st.lists(inner, min_size=2, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=6),
        max_leaves=60,
    )
)
def test_any_shape_ends_within_the_limit(value: Any) -> None:
    kept, _ = fit(event("agent.event.observed", **OBSERVED, evidence=value), capture().raw_hash)
    assert len(orjson.dumps(kept)) <= MAX_VALUE_BYTES
