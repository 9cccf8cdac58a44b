"""Generated configurations in every shape of their format."""

from __future__ import annotations

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mcp_proxy.wrap import clients, plan
from services.mcp_proxy.wrap.files import read
from tests.services.mcp_proxy.wrap.wrapping import proxied

pytestmark = pytest.mark.contract

PROGRAM = "/opt/agent trace/bin/agenttrace"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.one_of(st.sampled_from(["a", "a.b", "ü x", "-c", "1.5", "true", '"', "command"]), texts.filter(bool))
scalars = st.one_of(texts, st.booleans(), st.integers(-9, 9))
extras = st.dictionaries(
    st.sampled_from(["env", "cwd", "x y", "enabled"]),
    st.one_of(scalars, st.dictionaries(texts, texts, max_size=2)),
    max_size=2,
)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": draw(texts.filter(bool)), **draw(extras)}
    if draw(st.booleans()):
        entry["args"] = draw(st.lists(texts, max_size=3))
    keys = draw(st.permutations(list(entry)))
    return {key: entry[key] for key in keys}


configurations = st.dictionaries(names, entries(), min_size=1, max_size=4)


class Json:
    """Writes JSONC with any white space, comments and trailing commas."""

    def __init__(self, draw: st.DrawFn, loose: bool) -> None:
        self.draw = draw
        spaces = [" ", "", "\t", "\n  ", "\r\n", "\n\n"]
        self.spaces = st.sampled_from([*spaces, ' /* "x": [ */ ', " // it's, {\n"] if loose else spaces)
        self.tails = st.sampled_from(["", ","] if loose else [""])

    def gap(self) -> str:
        return self.draw(self.spaces)

    def text(self, value: str) -> str:
        return json.dumps(value, ensure_ascii=self.draw(st.booleans()))

    def write(self, value: Any) -> str:
        if isinstance(value, dict):
            pairs = [f"{self.text(key)}{self.gap()}:{self.gap()}{self.write(item)}" for key, item in value.items()]
            return self.group("{", pairs, "}")
        if isinstance(value, list):
            return self.group("[", [self.write(item) for item in value], "]")
        return self.text(value) if isinstance(value, str) else json.dumps(value)

    def group(self, start: str, items: list[str], end: str) -> str:
        inner = f"{self.gap()},{self.gap()}".join(items)
        return f"{start}{self.gap()}{inner}{self.gap()}{self.draw(self.tails) if items else ''}{self.gap()}{end}"


class Toml:
    """Writes TOML with tables, dotted keys, inline tables, and every kind of string."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.line = draw(st.sampled_from(["\n", "\r\n"]))

    def any(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def text(self, value: str, one_line: bool = False) -> str:
        basic = json.dumps(value, ensure_ascii=self.draw(st.booleans())).replace("\x7f", "\\u007f")
        if "\\u" in basic and basic.isascii() and any(ord(character) > 0xFFFF for character in value):
            basic = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no surrogate pairs
        shapes = [basic]
        if value.isprintable() and "'" not in value:
            shapes += [f"'{value}'", *([] if one_line else [f"'''{self.line}{value}'''"])]
        if not one_line:
            shapes.append(f'"""\\{self.line}   {basic[1:-1]}"""' if not value[:1].isspace() else basic)
        return self.draw(st.sampled_from(shapes))

    def key(self, key: str) -> str:
        bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
        return key if bare and self.draw(st.booleans()) else self.text(key, one_line=True)

    def write(self, value: Any) -> str:
        if isinstance(value, dict):
            pairs = [f"{self.key(key)}{self.any('=', ' = ')}{self.write(item)}" for key, item in value.items()]
            return "{" + self.any(" ", "") + self.any(", ", ",").join(pairs) + self.any(" ", "") + "}"
        if isinstance(value, list):
            gap = lambda: self.any("", " ", self.line, f" # c ]{self.line}  ")  # noqa: E731
            tail = self.any("", ",") if value else ""
            return "[" + gap() + (gap() + "," + gap()).join(map(self.write, value)) + gap() + tail + gap() + "]"
        return self.text(value) if isinstance(value, str) else json.dumps(value)

    def pairs(self, entry: dict[str, Any], prefix: str) -> str:
        return "".join(
            f"{self.any('', '  ')}{prefix}{self.key(key)} = {self.write(value)}{self.any('', ' # =')}{self.line}"
            for key, value in entry.items()
        )

    def document(self, servers: dict[str, Any]) -> str:
        whole = self.draw(st.booleans())
        if whole and self.draw(st.booleans()):
            return f"mcp_servers = {self.write(servers)}"
        if whole:
            parts = [
                f"{self.key(name)} = {self.write(entry)}{self.line}"
                if self.draw(st.booleans())
                else self.pairs(entry, f"{self.key(name)}{self.any('.', ' . ')}")
                for name, entry in servers.items()
            ]
            return f"{self.line}[mcp_servers]{self.line}" + "".join(parts)
        parts = []
        for name, entry in servers.items():
            tables = {key: value for key, value in entry.items() if isinstance(value, dict)}
            plain = {key: value for key, value in entry.items() if key not in tables}
            head = f"mcp_servers.{self.key(name)}"
            parts.append(f"[{head}] # t{self.line}{self.pairs(plain, '')}{self.line}")
            parts += [
                f"[ {head} . {self.key(key)} ]{self.line}{self.pairs(table, '')}" for key, table in tables.items()
            ]
        return "".join(parts)


def check(text: str, name: str, key: str, meaning: Any, servers: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode())
        snapshot = read(path)
        first = plan.wrap(snapshot, None, None, others={}, program=PROGRAM, http=True)
        expected = {name: proxied(name, entry) | {"command": PROGRAM} for name, entry in servers.items()}
        assert meaning(first.data)[key] == expected
        path.write_bytes(first.data)
        second = plan.wrap(read(path), None, first.record, others={}, program=PROGRAM, http=True)
        assert second.data == first.data
        assert plan.unwrap(read(path), None, first.record).data == snapshot.data
        # Edited since, the entries themselves must do.
        path.write_bytes(first.data + b"\n")
        one_by_one = plan.unwrap(read(path), None, first.record).data
        assert meaning(one_by_one)[key] == servers or any(entry.get("args") == [] for entry in servers.values())
        if all(entry.get("args", ["x"]) for entry in servers.values()):
            assert one_by_one == snapshot.data + b"\n"


@settings(max_examples=150, deadline=None)
@given(st.data(), configurations)
def test_json(data: st.DataObject, servers: dict[str, Any]) -> None:
    writer = Json(data.draw, loose=False)
    text = (
        data.draw(st.sampled_from(["", "\ufeff"]))
        + writer.gap()
        + writer.write({"a": [1], "mcpServers": servers})
        + writer.gap()
    )
    check(text, "m.json", "mcpServers", lambda found: json.loads(found.decode("utf-8-sig")), servers)


@settings(max_examples=150, deadline=None)
@given(st.data(), configurations)
def test_json_with_comments(data: st.DataObject, servers: dict[str, Any]) -> None:
    writer = Json(data.draw, loose=True)
    text = writer.gap() + writer.write({"servers": servers, "inputs": [{"id": "// no comment ,]"}]}) + writer.gap()
    check(
        text,
        "mcp.json",
        "servers",
        lambda found: clients.parse(found.decode(), Path("mcp.json"), None)[0].meaning,
        servers,
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), configurations)
def test_toml(data: st.DataObject, servers: dict[str, Any]) -> None:
    text = data.draw(st.sampled_from(["", "\ufeff", "# ü\n"])) + Toml(data.draw).document(servers)
    assert tomllib.loads(text.removeprefix("\ufeff"))["mcp_servers"] == servers
    check(text, "c.toml", "mcp_servers", lambda found: tomllib.loads(found.decode("utf-8-sig")), servers)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60) | st.text('{}[]":,/*\\ \nacdmnoprsvMS', max_size=60).map(str.encode),
    st.sampled_from(["m.json", "c.toml"]),
)
def test_any_bytes_are_read_or_refused(data: bytes, name: str) -> None:
    from schemas.errors import UserError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            plan.wrap(read(path), None, None, others={}, program=PROGRAM, http=True)
        except UserError as error:
            assert "\n" not in str(error)
