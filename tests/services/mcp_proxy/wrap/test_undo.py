"""Undo and check after the file was edited: what people changed stays, what the wrap changed goes."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from services.mcp_proxy.http.routes import Routes, parse_route
from tests.services.mcp_proxy.wrap.wrapping import CONFIGS, PROGRAM, placed, proxied, refused, run

pytestmark = pytest.mark.contract


def edit(data: bytes, name: str) -> bytes:
    """What a person does meanwhile, to the wrapped file and to the original alike."""
    if name.endswith(".toml"):
        return data.replace(b'"on-request"', b'"never"') + b'\n[mcp_servers.added]\ncommand = "added" # by hand\n'
    changed = data.replace(b'"env": {}', b'"env": {"NEW": "1"}').replace(b"// asked once", b"// asked twice")
    return changed.replace(b'ervers": {', b'ervers": {\n  "added": {"command": "added"},', 1)


@pytest.mark.parametrize(
    "name", ["claude_code.mcp.json", "vscode.json", "codex.toml", "cursor.json", "claude_user.json"]
)
def test_edits_since_the_wrap_stay(name: str, tmp_path: Path, home: Path) -> None:
    path = placed(name, tmp_path)
    run(path, "--http")
    path.write_bytes(edit(path.read_bytes(), name))
    checked = run(path, "--check", "--http", code=1)
    assert "to wrap         added" in checked.stdout
    said = run(path, "--undo").stdout
    assert "edited since" in said
    assert path.read_bytes() == edit((CONFIGS / name).read_bytes(), name)
    assert not list((home / "wrapped").glob("*.json"))
    assert "edited since" not in run(path, "--undo").stdout


@pytest.mark.parametrize("name", ["claude_code.mcp.json", "vscode.json", "codex.toml", "wrapped_by_hand.json"])
def test_a_server_added_later_is_wrapped_by_the_next_wrap(name: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    run(path, "--http")
    run(path, "--check", "--http")
    path.write_bytes(edit(path.read_bytes(), name))
    run(path, "--check", code=1)
    run(path)
    run(path, "--check")
    run(path, "--undo")
    assert path.read_bytes() == edit((CONFIGS / name).read_bytes(), name)


def test_a_client_that_writes_the_whole_file_anew(tmp_path: Path) -> None:
    """Claude Code does, at every start."""
    path = placed("claude_user.json", tmp_path)
    before = json.loads(path.read_bytes())
    run(path, "--http")
    found = json.loads(path.read_bytes())
    path.write_text(json.dumps({**found, "numStartups": 213}, indent=4, ensure_ascii=True, sort_keys=True))
    run(path, "--check", "--http")
    run(path, "--undo")
    assert json.loads(path.read_bytes()) == {**before, "numStartups": 213}


def test_a_wrap_in_two_steps_is_undone_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    original = b'{"mcpServers": {"a": {"args": [], "command": "x"}, "b": {"url": "https://example.com"}}}'
    path.write_bytes(original)
    run(path)
    between = path.read_bytes()
    run(path, "--http")
    assert path.read_bytes() != between
    run(path, "--undo")
    assert path.read_bytes() == original


def test_what_was_wrapped_by_hand_before_stays_so(tmp_path: Path) -> None:
    path = placed("wrapped_by_hand.json", tmp_path)
    run(path)
    path.write_bytes(path.read_bytes() + b"\n")
    assert "it was wrapped before" in run(path, "--undo").stdout
    assert path.read_bytes() == (CONFIGS / "wrapped_by_hand.json").read_bytes() + b"\n"


def test_a_person_may_change_a_wrapped_server(tmp_path: Path) -> None:
    path = placed("claude_code.mcp.json", tmp_path)
    run(path)
    text = path.read_text()
    path.write_text(
        text.replace('"uvx",', '"--", "/opt/uvx", "-v",').replace(
            '"--server", "filesystem"', '"--sink", "jsonl:x", "--server", "fs"'
        )
    )
    run(path, "--check")
    run(path, "--undo")
    found = json.loads(path.read_bytes())["mcpServers"]
    assert (
        found["filesystem"] == json.loads((CONFIGS / "claude_code.mcp.json").read_bytes())["mcpServers"]["filesystem"]
    )
    # `-- -- uvx`: what follows the first -- is the command, whatever it is.
    assert (found["git tools"]["command"], found["git tools"]["args"][:2]) == ("--", ["/opt/uvx", "-v"])


def test_an_entry_that_no_wrap_wrote_is_left_and_said(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entry = {"command": "/x/agenttrace", "args": ["proxy", "stdio", "--server", "a", "--real-command", "srv"]}
    remote = {"url": "http://127.0.0.1:8790/mcp/a"}
    path.write_text(json.dumps({"mcpServers": {"a": entry, "b": remote}}))
    before = path.read_bytes()
    said = run(path, "--undo", code=1).stdout
    assert "not restored    a: no wrap wrote it" in said
    assert "not restored    b: no record says where its route leads" in said
    run(path, "--check", "--http")
    assert path.read_bytes() == before


def test_remote_servers_are_asked_for_and_their_routes_lead_to_them(tmp_path: Path) -> None:
    path = placed("claude_user.json", tmp_path / "a")
    before = json.loads(path.read_bytes())["projects"]["/home/dev/zwei"]["mcpServers"]["events"]
    plain = run(path).stdout
    assert json.loads(path.read_bytes())["projects"]["/home/dev/zwei"]["mcpServers"]["events"] == before
    assert "events (in /home/dev/zwei): remote; --http" in plain
    run(path, "--http")
    second = tmp_path / "b" / "mcp.json"
    second.parent.mkdir()
    urls = {
        "events": "https://other.example.com/x?key=s3cr3t#f",
        "a b/ü": "http://[::1]:9000",
        "same": "https://user:pass@example.com/mcp",
        "Ü": "https://example.com/",
        "variable": "https://${HOST}/mcp",
    }
    second.write_text(json.dumps({"mcpServers": {name: {"type": "http", "url": url} for name, url in urls.items()}}))
    original = second.read_bytes()
    said = json.loads(run(second, "--http", "--json").stdout)
    assert [server["outcome"] for server in said["servers"]] == ["wrapped", "wrapped", "left", "wrapped", "left"]
    assert said["run"][:3] == [PROGRAM, "proxy", "http"]
    assert "s3cr3t" not in str(said["run"])
    routes = Routes([parse_route(word) for word in said["run"][4::2]])
    found = json.loads(second.read_bytes())["mcpServers"]
    reached = {}
    for name in ("events", "a b/ü", "Ü"):
        front, target = found[name]["url"][:21], found[name]["url"][21:].partition("#")[0]
        assert front == "http://127.0.0.1:8790"
        upstream = routes.find(target.encode())
        assert upstream is not None
        reached[name] = (upstream.route.origin + upstream.target).decode()
    assert reached == {
        "events": "https://other.example.com/x?key=s3cr3t",
        "a b/ü": "http://[::1]:9000/",
        "Ü": "https://example.com/",
    }
    first = routes.find(
        json.loads(path.read_bytes())["projects"]["/home/dev/zwei"]["mcpServers"]["events"]["url"][21:].encode()
    )
    assert first is not None and first.route.origin + first.target == b"http://localhost:4000/sse"
    assert shlex.join(said["run"]) in run(second, "--http").stdout
    second.write_bytes(second.read_bytes() + b" ")
    run(second, "--undo")
    assert json.loads(second.read_bytes()) == json.loads(original)


def test_the_summary_for_machines(tmp_path: Path) -> None:
    path = placed("vscode.json", tmp_path)
    said = json.loads(run(path, "--json").stdout)
    assert (said["file"], said["client"], said["action"], said["changed"]) == (str(path), "vscode", "wrap", True)
    outcomes = {server["name"]: (server["transport"], server["outcome"]) for server in said["servers"]}
    assert outcomes == {
        "playwright": ("stdio", "wrapped"),
        "fetch": ("stdio", "wrapped"),
        "empty": ("stdio", "wrapped"),
        "remote": ("remote", "left"),
        "known": ("remote", "left"),
        "socket": ("remote", "left"),
        "ws": ("remote", "left"),
    }
    assert said["servers"][0]["line"] == 8
    assert json.loads(run(path, "--json").stdout)["changed"] is False
    assert json.loads(run(path, "--undo", "--json", "--dry-run").stdout)["changed"] is False
    assert json.loads(run(path, "--undo", "--json").stdout)["changed"] is True


def test_names_that_are_awkward_as_words(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    names = ["-rf", "--", "a b", "ü🗄", "a.b/c", "$(x)", 'q"\\', "\u202e", "", "\ud800"]
    entries = {name: {"command": "srv", "args": ["--"]} for name in names}
    path.write_text(json.dumps({"mcpServers": entries}))
    run(path)
    assert json.loads(path.read_bytes())["mcpServers"] == {
        name: proxied(name, entry) if name else entry for name, entry in entries.items()
    }
    run(path, "--check")
    run(path, "--undo")
    assert json.loads(path.read_bytes())["mcpServers"] == entries


def test_a_name_that_toml_wants_escaped(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[mcp_servers."a\\u007f"]\ncommand = "x"\n')
    run(path)
    found = tomllib.loads(path.read_text())["mcp_servers"]
    assert found == {"a\x7f": proxied("a\x7f", {"command": "x"})}


def test_a_comma_that_a_person_added_goes_with_the_words_before_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[mcp_servers.a]\ncommand = "x"\nargs = []\n')
    run(path)
    path.write_text(path.read_text().replace('"x"]', '"x" , ]'))
    run(path, "--undo")
    assert tomllib.loads(path.read_text())["mcp_servers"] == {"a": {"command": "x", "args": []}}


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    path = placed("codex.toml", tmp_path)
    run(path, "--undo", "--check", code=2)
    run(path, "--undo", "--http", code=2)
    assert "the configuration of cursor is JSON" in str(refused(path, "--client", "cursor"))
    assert "the configuration of codex is TOML" in str(refused(placed("vscode.json", tmp_path), "--client", "codex"))
