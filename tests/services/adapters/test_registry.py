"""The door to the adapters: markers of oversized payloads, and payloads that make more events than one delivery may."""

from __future__ import annotations

import orjson
import pytest

from schemas.events import Quarantined
from schemas.identity import new_delivery_id
from services.adapters import registry
from services.adapters.calls import CallTable
from services.adapters.context import MAX_EVENTS, Context, Scope
from services.adapters.registry import ADAPTERS, Adapter, normalise, parse
from tests.services.collector.running import capture

pytestmark = pytest.mark.unit


def context() -> Context:
    return Context("codex", "codex/1", new_delivery_id(), 0, 0, capture(), CallTable())


@pytest.mark.parametrize("digest", ["0" * 64, None])
def test_a_marker_stands_for_an_oversized_payload(digest: str | None) -> None:
    marker = {"agenttrace_oversized": {"size_bytes": 40 << 20, "sha256": digest}}
    [event] = normalise(orjson.dumps(marker), context())
    assert isinstance(event, Quarantined)
    assert (event.size_bytes, event.hash) == (40 << 20, f"sha256:{digest or 'unknown'}")


@pytest.mark.parametrize("digest", ["x" * 600_000, "0" * 63, 7, ["0" * 64], {"a": 1}, "A" * 64])
def test_a_marker_with_any_other_hash_is_a_payload_like_others(digest: object) -> None:
    body = orjson.dumps({"agenttrace_oversized": {"size_bytes": 1, "sha256": digest}})
    assert parse(body).oversized is None
    assert all(len(event.model_dump_json()) < 10_000 for event in normalise(body, context()))


def test_more_events_than_a_delivery_may_have_end_in_one_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(payload: object, to: Context) -> list[registry.Event]:
        for _ in range(MAX_EVENTS + 5):
            to.observed("flood", 1, Scope(), "unknown")
        return to.events

    monkeypatch.setitem(ADAPTERS, "codex", Adapter("codex", "codex/1", (), flood))  # type: ignore[arg-type]
    made = normalise(b"{}", context())
    assert len(made) == MAX_EVENTS + 1
    assert made[-1].event_name == "agent.payload.quarantined"
    assert len({event.event_id for event in made}) == len(made)
    assert {event.event_id[:-4] for event in made} == {made[0].event_id[:-4]}
