"""Writes schemas/registry/ from the models: JSON Schemas (2020-12), an AsyncAPI 3.0 document and the id test vectors.

`python -m schemas.generate` writes, `--check` names what is stale. A test runs the check.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import orjson
from pydantic import BaseModel

from schemas import events, identity
from schemas.canonical import canonical
from schemas.config import Config
from schemas.envelopes import ENVELOPES
from schemas.policy import PolicyFile
from schemas.topics import TOPICS

REGISTRY = Path(__file__).parent / "registry"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def event_models() -> dict[str, type[BaseModel]]:
    """Every event name and its model."""
    union = get_args(events.Event)[0]
    return {name: model for model in get_args(union) for name in get_args(model.model_fields["event_name"].annotation)}


def files() -> dict[str, str]:
    """Path below schemas/registry to content."""
    made: dict[str, str] = {}
    for name, model in event_models().items():
        schema = model.model_json_schema(mode="serialization")
        schema["properties"]["event_name"] = {"const": name}
        made[f"events/{name}.json"] = _text({"$schema": _DIALECT, "$id": f"urn:agenttrace:event:{name}:1.0", **schema})
    for name, model in ENVELOPES.items():
        schema = model.model_json_schema()
        made[f"hooks/{name}.json"] = _text({"$schema": _DIALECT, "$id": f"urn:agenttrace:hook:{name}", **schema})
    for name, model in (("config", Config), ("policies", PolicyFile)):
        schema = model.model_json_schema()
        made[f"files/{name}.json"] = _text({"$schema": _DIALECT, "$id": f"urn:agenttrace:file:{name}", **schema})
    made["asyncapi.json"] = _text(_asyncapi())
    made["test-vectors.json"] = _text(_vectors())
    return made


def stale() -> list[str]:
    """Files that are missing, differ or should not be there."""
    wanted = files()
    there = {str(path.relative_to(REGISTRY)) for path in REGISTRY.rglob("*") if path.is_file()}
    differing = [
        name for name, text in wanted.items() if name not in there or (REGISTRY / name).read_text("utf-8") != text
    ]
    return sorted([*differing, *(there - wanted.keys())])


def write() -> None:
    """Bring the folder to `files()`."""
    wanted = files()
    for path in REGISTRY.rglob("*"):
        if path.is_file() and str(path.relative_to(REGISTRY)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = REGISTRY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _asyncapi() -> dict[str, Any]:
    channels, operations, messages = {}, {}, {}
    for topic in TOPICS:
        key = topic.name.removeprefix("agenttrace.").replace(".", "_").replace("-", "_")
        channels[key] = {
            "address": topic.name,
            "description": f"{topic.kind} topic, keyed by {topic.key}",
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in topic.events},
            "bindings": {
                "kafka": {"topic": topic.name, "topicConfiguration": dict(topic.config), "bindingVersion": "0.5.0"}
            },
        }
        operations[f"receive_{key}"] = {"action": "receive", "channel": {"$ref": f"#/channels/{key}"}}
        for name in topic.events:
            messages[name] = {
                "name": name,
                "contentType": "application/json",
                "payload": {
                    "schemaFormat": "application/schema+json;version=draft-2020-12",
                    "schema": {"$ref": f"events/{name}.json"},
                },
            }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "AgentTrace", "version": "1.0.0", "description": "Events of coding agents and MCP traffic."},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _vectors() -> dict[str, Any]:
    values: list[Any] = [{"b": 1, "a": [True, None, 1.5, "é"]}, {"\u20ac": 1e21, "1": 0.1}, [], {}]
    delivery = "01990000-0000-7abc-8000-00000abc0000"
    key = identity.join_key("", "claude_code", "s|1", "", "toolu_1")
    call = identity.call_id(key, 1)
    return {
        "canonical_json": [{"value": value, "canonical": canonical(value).decode()} for value in values],
        "event_id": [
            {"delivery_id": delivery, "n": n, "event_id": identity.event_id(delivery, n)} for n in (0, 1, 4096)
        ],
        "uuid7_ms": [{"id": delivery, "ms": identity.uuid7_ms(delivery)}],
        "call_key": [{"parts": ["", "claude_code", "s|1", "", "toolu_1"], "call_key": key}],
        "call_id": [{"call_key": key, "occurrence": n, "call_id": identity.call_id(key, n)} for n in (1, 2)],
        "span_id": [{"name": call, "span_id": identity.span_id(call)}],
        "trace_id": [{"parts": ["codex", "s1", "t1"], "trace_id": identity.trace_id("codex", "s1", "t1")}],
        "finding_id": [
            {"parts": ["tool-loop", 1, "", "s1", 42], "finding_id": identity.finding_id("tool-loop", 1, "", "s1", 42)}
        ],
        "canonical_name": [
            {"name": n, "canonical": identity.canonical_name(n)} for n in ("odd.srv 2", "get-sum", "A__B")
        ],
    }


def _text(data: dict[str, Any]) -> str:
    return orjson.dumps(data, option=orjson.OPT_INDENT_2).decode() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        names = stale()
        print("\n".join(f"stale: schemas/registry/{name}" for name in names) or "schemas/registry is up to date")
        sys.exit(1 if names else 0)
    write()
