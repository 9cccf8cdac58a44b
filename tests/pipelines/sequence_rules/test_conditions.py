"""What a `where` means, and that the index selects exactly what the conditions one by one would."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.sequence_rules.conditions import ConditionError, parse, predicate
from pipelines.sequence_rules.fields import FieldError
from pipelines.sequence_rules.selection import Index, Selection

pytestmark = pytest.mark.unit

NAMES = ["tool.call.started"]


def holds(where: dict[str, Any], event: dict[str, Any]) -> bool:
    return predicate([parse(key, value, NAMES) for key, value in where.items()])(event)


FACTS = {
    "commands": [{"argv0": "git", "sub": "status"}, {"argv0": "npm", "sub": "push"}],
    "paths": [{"path": "/a/.env", "kind": "write"}, {"path": "/a/b", "kind": "read"}],
    "hosts": [{"host": "x.example.com", "domain": "example.com"}, {"host": "::1", "domain": "::1", "loopback": True}],
    "secret_kinds": ["email"],
}


@pytest.mark.parametrize(
    ("where", "event", "expected"),
    [
        ({"tool_name": "Bash"}, {"tool_name": "Bash"}, True),
        ({"tool_name": "Bash"}, {"tool_name": "bash"}, False),
        ({"tool_name": ["Bash", "Read"]}, {"tool_name": "Read"}, True),
        ({"tool_name_in": ["Bash"]}, {"tool_name": "Bash"}, True),
        ({"tool_name.in": ["Bash"]}, {}, False),
        ({"agent_id_not_in": ["sre"]}, {"agent_id": "dev"}, True),
        ({"agent_id_not_in": ["sre"]}, {"agent_id": "sre"}, False),
        ({"agent_id_not_in": ["sre"]}, {}, True),
        ({"tool_name.eq": "Bash"}, {"tool_name": "Bash"}, True),
        ({"tool_name.regex": "^Ba"}, {"tool_name": "xBash"}, False),
        ({"tool_name.regex": "as"}, {"tool_name": "Bash"}, True),
        ({"tool_name_regex": ["^R", "^B"]}, {"tool_name": "Bash"}, True),
        ({"tool_name.not_regex": "^B"}, {"tool_name": "Bash"}, False),
        ({"tool_name.regex": "a"}, {"tool_name": 7}, False),
        ({"tool_name.regex": "\ud7ff|."}, {"tool_name": "\ud800"}, True),
        ({"input.size_bytes.gt": 10}, {"input": {"size_bytes": 11}}, True),
        ({"input.size_bytes.gt": 10}, {"input": {"size_bytes": "11"}}, False),
        ({"input.size_bytes.gte": 11, "input.size_bytes.lt": 12}, {"input": {"size_bytes": 11}}, True),
        ({"duration_ms.lte": 0.5}, {"duration_ms": 0.5}, True),
        ({"duration_ms.lte": 0.5}, {"duration_ms": True}, False),
        ({"mcp.server_name.exists": True}, {"mcp": {"server_name": "x"}}, True),
        ({"mcp.server_name.exists": True}, {"mcp": "x"}, False),
        ({"mcp.server_name.exists": False}, {}, True),
        ({"input.summary.contains": ["a b", "zz"]}, {"input": {"summary": "xa bx"}}, True),
        ({"input.summary.startswith": "x"}, {"input": {"summary": "ax"}}, False),
        ({"input.summary.endswith": "x"}, {"input": {"summary": "ax"}}, True),
        ({"labels.env": "prod"}, {"labels": {"env": "prod"}}, True),
        # What has its default is left out of an event's JSON.
        ({"wrapper": False}, {}, True),
        ({"wrapper": True}, {}, False),
        ({"tool_source": "unknown"}, {}, True),
        ({"facts.pipe_to_shell": False}, {}, True),
        ({"facts.hosts.loopback": False}, {"facts": FACTS}, True),
        ({"facts.hosts.loopback": False}, {"facts": {"hosts": FACTS["hosts"][1:]}}, False),
        # 1 is not true.
        ({"exit_code": 1}, {"exit_code": True}, False),
        ({"exit_code_in": [1, 2]}, {"exit_code": 1}, True),
        # Lists: any element, and one element for all conditions on it.
        ({"facts.secret_kinds": "email"}, {"facts": FACTS}, True),
        ({"facts.secret_kinds_not_in": ["email"]}, {"facts": FACTS}, False),
        ({"facts.secret_kinds_not_in": ["email"]}, {}, False),
        ({"facts.secret_kinds.exists": True}, {"facts": FACTS}, True),
        ({"facts.secret_kinds.exists": False}, {"facts": {"secret_kinds": []}}, True),
        ({"facts.hosts.exists": False}, {"facts": {}}, True),
        ({"facts.hosts.exists": False}, {"facts": FACTS}, False),
        ({"facts.commands.argv0": "git", "facts.commands.sub": "push"}, {"facts": FACTS}, False),
        ({"facts.commands.argv0": "npm", "facts.commands.sub": "push"}, {"facts": FACTS}, True),
        ({"facts.paths.kind": "read", "facts.paths.path.regex": r"\.env$"}, {"facts": FACTS}, False),
        ({"facts.commands.flags": "-f"}, {"facts": {"commands": [{"argv0": "x", "flags": ["-a", "-f"]}]}}, True),
        ({"facts.commands.flags.regex": "^-.*f"}, {"facts": {"commands": [{"argv0": "x", "flags": ["-uf"]}]}}, True),
        ({"facts.commands.argv0": "x"}, {"facts": {"commands": "x"}}, False),
        ({"facts.commands.argv0": "x"}, {"facts": {"commands": ["x", {"argv0": "x"}]}}, True),
        ({"facts.commands.argv0": "x"}, {"facts": {"commands": ({"argv0": "x"},)}}, True),
    ],
)
def test_meaning(where: dict[str, Any], event: dict[str, Any], expected: bool) -> None:
    assert holds(where, event) is expected


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("tool_name.regex", "(", ConditionError),
        ("tool_name.regex", 5, ConditionError),
        ("tool_name.in", [], ConditionError),
        ("input.size_bytes.gt", [1, 2], ConditionError),
        ("tool_name.exists", "yes", ConditionError),
        ("tool_name.contains", 1, ConditionError),
        ("tool_name.part", "x", FieldError),
        ("toolname", "x", FieldError),
        ("facts.commands.argv", "x", FieldError),
        (".regex", "x", FieldError),
        ("", "x", FieldError),
    ],
)
def test_what_has_no_meaning_is_refused(key: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse(key, value, NAMES)


WHERES: list[list[dict[str, Any]]] = [
    [{}],
    [{"tool_source": "shell"}],
    [{"tool_source_not_in": ["shell", "web"], "tool_name.regex": "^[BR]"}],
    [{"tool_name": ["Bash", "Read"]}],
    [{"tool_name.contains": "a.h"}, {"tool_name.startswith": "R"}, {"tool_name.endswith": "?"}],
    [{"facts.commands.argv0": "git", "facts.commands.sub": "push"}],
    [{"facts.commands.argv0": "git"}, {"facts.hosts.loopback": False}],
    [{"facts.paths.path.regex": r"\.env$", "facts.paths.kind": "read"}],
    [{"facts.secret_kinds_in": ["jwt", "email"]}],
    [{"facts.secret_kinds.exists": False, "wrapper": False}],
    [{"facts.pipe_to_shell": True}],
    [{"facts.pipe_to_shell": False, "tool_source": "web"}],
    [{"wrapper": True}],
    [{"input.size_bytes.gt": 3}],
    [{"facts.commands.flags": "-f"}],
]
texts = st.sampled_from(
    ["Bash", "Read", "Ra.h", "Rash", "what?", "git", "push", "-f", "/a/.env", "read", "jwt", "email"]
)
elements = st.fixed_dictionaries(
    {},
    optional={
        "argv0": texts,
        "sub": texts,
        "flags": st.lists(texts, max_size=2),
        "path": texts,
        "kind": texts,
        "loopback": st.booleans(),
    },
)
junk = st.one_of(st.none(), st.integers(0, 5), texts, st.just([]), st.just({}), st.just([["x"]]))
lists = st.one_of(st.lists(st.one_of(elements, texts), max_size=3), junk)
events = st.fixed_dictionaries(
    {"event_name": st.sampled_from(["tool.call.started", "tool.call.error"])},
    optional={
        "tool_source": st.one_of(st.sampled_from(["shell", "web", "mcp", "astral"]), junk),
        "tool_name": st.one_of(texts, junk),
        "wrapper": st.booleans(),
        "input": st.one_of(st.fixed_dictionaries({"size_bytes": st.integers(0, 9)}), junk),
        "facts": st.one_of(
            st.fixed_dictionaries(
                {},
                optional={
                    "commands": lists,
                    "hosts": lists,
                    "paths": lists,
                    "secret_kinds": st.one_of(st.lists(st.one_of(texts, junk), max_size=3), junk),
                    "pipe_to_shell": st.booleans(),
                },
            ),
            junk,
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, min_size=1, max_size=6))
def test_the_index_finds_what_each_condition_finds(log: list[dict[str, Any]]) -> None:
    alternatives = [
        [[parse(key, value, NAMES) for key, value in where.items()] for where in wheres] for wheres in WHERES
    ]
    selections = [Selection(number, 0, NAMES, parsed) for number, parsed in enumerate(alternatives)]
    index = Index(selections)
    for made in log:
        event = orjson.loads(orjson.dumps(made))
        known = event
        if event.get("tool_source", "unknown") not in ("shell", "web", "mcp"):
            known = {**event, "tool_source": "unknown"}
        expected = {
            number
            for number, arms in enumerate(alternatives)
            if event["event_name"] in NAMES and any(predicate(arm)(known) for arm in arms)
        }
        assert {selection.owner for selection in index.select(event)} == expected
