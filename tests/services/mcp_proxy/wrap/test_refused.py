"""Files that cannot be wrapped: one line says what and where, and every byte stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from services.mcp_proxy.wrap import files, plan
from tests.services.mcp_proxy.wrap.wrapping import placed, proxied, refused, run

pytestmark = pytest.mark.contract

SERVER = b'"a": {"command": "x"}'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("m.json", b"", ":1: the file is empty"),
        ("m.json", b" \n// nothing\n", ":1: the file is empty"),
        ("m.json", b'{"mcpServers": {' + SERVER, ":1: not valid JSON"),
        ("m.json", b'{\n "mcpServers": {' + SERVER + b"}\n /* open }", ":3: not valid JSON"),
        ("m.json", b'{\n\n"mcpServers": {' + SERVER + b",,}}", ":3: not valid JSON"),
        ("m.json", b'{"mcpServers": {' + SERVER + b'}, "n": NaN}', "NaN is no JSON value"),
        ("m.json", b'{"mcpServers": {' + SERVER + b'}, "n": ' + b"9" * 5000 + b"}", "a number out of range"),
        ("m.json", b'{"mcpServers": {"a": ' + b"[" * 200_000, "nested too deeply"),
        ("m.json", b"[1]", ":1: the file must hold an object"),
        ("m.json", b'{"other": {}}', "there are no servers below 'mcpServers' or 'servers'"),
        ("m.json", b'{"mcpServers": {}}', "there are no servers"),
        ("m.json", b'{"mcpServers":\n [1]}', ":2: 'mcpServers' must be an object"),
        ("m.json", b'{"mcpServers": {\n' + SERVER + b",\n" + SERVER + b"}}", ':3: the key "a" is there twice'),
        (
            "m.json",
            b'{"mcpServers": {},\n"mcp\\u0053ervers": {' + SERVER + b"}}",
            ':2: the key "mcpServers" is there twice',
        ),
        ("m.json", b'{"mcpServers": {"a": {"command": "x",\n"command": "y"}}}', ':2: the key "command" is there twice'),
        (".claude.json", b'{"projects": {"/p": {}, "/p":\n{}}}', 'the key "/p" is there twice'),
        ("m.json", b'{"mcpServers": {\n"a": {"command": "\xff"}}}', ":2: not UTF-8 text"),
        ("m.json", '{"mcpServers": {"a": {"command": "x"}}}'.encode("utf-16"), ":1: not UTF-8 text"),
        ("m.json", b"\x00\x01\x02", ":1: not valid JSON"),
        ("c.toml", b"", ":1: the file is empty"),
        ("c.toml", b'[mcp_servers.a]\ncommand = "x\n', ":2: not valid TOML"),
        ("c.toml", b'[mcp_servers.a]\ncommand = "x"\ncommand = "y"\n', ":3: not valid TOML: Cannot overwrite a value"),
        ("c.toml", b'[mcp_servers.a]\ncommand = "x"\n[mcp_servers.a]\n', ":3: not valid TOML"),
        ("c.toml", b'[[mcp_servers]]\ncommand = "x"\n', "'mcp_servers' must be a table"),
        ("c.toml", b'model = "x"\n', "there are no servers below [mcp_servers.NAME]"),
        ("c.toml", b"x = " + b"[" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--undo",), ("--check",), ("--dry-run",)])
def test_what_cannot_be_read(name: str, data: bytes, said: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    error = refused(path, *flags)
    assert said in str(error)
    assert str(error).startswith(str(path))
    assert error.exit_code == 65
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "there is no such file" in str(refused(tmp_path / "none.json"))
    assert "not a file" in str(refused(tmp_path))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "not a file" in str(refused(fifo))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read" in str(refused(loop))
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert "there is no such file" in str(refused(tmp_path / "dangling"))
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    assert "32 MiB, more than the 32 MiB of a configuration" in str(refused(huge))


def test_a_link_stays_and_its_target_is_wrapped(tmp_path: Path) -> None:
    target = placed("codex.toml", tmp_path / "dotfiles")
    before = target.read_bytes()
    target.chmod(0o600)
    middle, link = tmp_path / "middle", tmp_path / "config.toml"
    middle.symlink_to("dotfiles/.codex")
    link.symlink_to("middle/config.toml")
    run(link)
    assert link.is_symlink() and str(link.readlink()) == "middle/config.toml"
    assert b'"proxy"' in target.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o600
    run(target, "--check")
    run(middle / "config.toml", "--undo")
    assert target.read_bytes() == before and link.is_symlink()


def test_a_damaged_record_is_named_and_the_file_stays(tmp_path: Path, home: Path) -> None:
    path = placed("codex.toml", tmp_path)
    run(path)
    before = path.read_bytes()
    (record,) = (home / "wrapped").glob("*.json")
    assert record.stat().st_mode & 0o777 == 0o600 and record.parent.stat().st_mode & 0o777 == 0o700
    for damage in (b"", b"[]", b"{}", b'{"original": "*", "wrapped_sha256": "", "routes": {}}', b"\xff"):
        record.write_bytes(damage)
        assert str(record) in str(refused(path, "--undo"))
        assert path.read_bytes() == before
        run(placed("cursor.json", tmp_path))  # another file needs it for routes only
        assert str(record) in str(refused(tmp_path / ".cursor" / "mcp.json", "--http"))


def test_a_large_file(tmp_path: Path) -> None:
    """~/.claude.json grows: 2 MiB of history, one server before and one behind."""
    history = {f"/p/{n}": {"history": [{"display": f"line {n} ü", "n": i} for i in range(50)]} for n in range(600)}
    entry = {"command": "x", "args": ["y"]}
    data = json.dumps(
        {"mcpServers": {"a": entry}, "projects": {**history, "/z": {"mcpServers": {"b": entry}}}}, indent=2
    )
    path = tmp_path / ".claude.json"
    path.write_text(data)
    assert path.stat().st_size > 2 << 20
    shown = run(path, "--dry-run").stdout
    assert shown.count("+ ") >= 4 and len(shown) < 5000
    run(path)
    found = json.loads(path.read_bytes())
    assert found["projects"]["/z"]["mcpServers"] == {"b": proxied("b", entry)}
    path.write_text(path.read_text() + "\n")
    run(path, "--undo")
    assert path.read_text() == data + "\n"


def test_an_edit_that_would_mean_something_else_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = placed("codex.toml", tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(plan, "apply", lambda text, edits: text.replace("gpt", "other"))
    assert "cannot be edited safely; nothing was changed" in str(refused(path))
    assert path.read_bytes() == before
