"""Configurations as clients have them: wrapped they mean what they must, and an undo gives every byte back."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.services.mcp_proxy.wrap.wrapping import ALL, CONFIGS, PROGRAM, placed, proxied, run

pytestmark = pytest.mark.contract


def meaning(data: bytes, name: str) -> Any:
    text = data.decode("utf-8-sig")
    if name.endswith(".toml"):
        return tomllib.loads(text)
    if name == "vscode.json":
        text = re.sub(r"(?m)(^| )// .*$|/\*.*?\*/", "", text)  # enough for this one file
        text = re.sub(r",(\s*[\]}])", r"\1", text)
    return json.loads(text)


def servers(node: Any) -> list[dict[str, Any]]:
    """Every map of servers in the file."""
    maps = [node[key] for key in ("mcpServers", "mcp_servers", "servers") if key in node]
    return maps + [project["mcpServers"] for project in node.get("projects", {}).values() if "mcpServers" in project]


def is_stdio(entry: Any) -> bool:
    args = entry.get("args", []) if isinstance(entry, dict) else None
    texts = isinstance(args, list) and all(isinstance(word, str) for word in args)
    return texts and isinstance(entry.get("command"), str)


def by_hand(entry: Any) -> bool:
    return entry["command"].endswith("/agenttrace")


@pytest.mark.parametrize("name", ALL)
def test_every_stdio_server_and_nothing_else_is_wrapped(name: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    before = meaning(path.read_bytes(), name)
    run(path)
    after, wrapped = meaning(path.read_bytes(), name), 0
    for map_ in servers(before):
        for key, entry in map_.items():
            if is_stdio(entry) and not by_hand(entry):
                map_[key] = proxied(key, entry)
                wrapped += 1
    assert wrapped
    assert after == before


@pytest.mark.parametrize("flags", [(), ("--http",)])
@pytest.mark.parametrize("name", ALL)
def test_undo_gives_every_byte_back(name: str, flags: tuple[str, ...], tmp_path: Path, home: Path) -> None:
    path = placed(name, tmp_path)
    path.chmod(0o640)
    run(path, *flags)
    assert path.read_bytes() != (CONFIGS / name).read_bytes()
    run(path, "--undo")
    assert path.read_bytes() == (CONFIGS / name).read_bytes()
    assert path.stat().st_mode & 0o7777 == 0o640
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert [file.name for file in (home / "wrapped").iterdir()] == ["lock"]


@pytest.mark.parametrize("name", ALL)
def test_twice_is_once(name: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    run(path, "--http")
    once, status = path.read_bytes(), path.stat()
    run(path, "--http")
    assert path.read_bytes() == once
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    run(path, "--undo")
    assert path.read_bytes() == (CONFIGS / name).read_bytes()


@pytest.mark.parametrize("name", ALL)
def test_without_its_record_each_entry_still_holds_what_it_was(name: str, tmp_path: Path, home: Path) -> None:
    path = placed(name, tmp_path)
    original = path.read_bytes()
    if name == "wrapped_by_hand.json":  # this undo takes back what people wrapped, too
        original = re.sub(rb'"/opt.*\n.*', b'"uvx",\n      "args": ["srv"]', original)
    run(path)
    for record in (home / "wrapped").glob("*.json"):
        record.unlink()
    run(path, "--undo")
    assert path.read_bytes() == original


@pytest.mark.parametrize("name", ALL)
def test_a_dry_run_changes_nothing_and_shows_no_secret(name: str, tmp_path: Path, home: Path) -> None:
    path = placed(name, tmp_path)
    status = path.stat()
    shown = run(path, "--dry-run", "--http").stdout
    assert (path.read_bytes(), path.stat().st_mtime_ns) == ((CONFIGS / name).read_bytes(), status.st_mtime_ns)
    assert not list(home.iterdir())
    assert f"+++ {path}" in shown
    assert re.search(r'^\+.*"proxy",', shown, re.MULTILINE)
    assert PROGRAM in shown
    for secret in ("not-a-real", "secret-path", "someone@"):
        assert secret not in shown
    run(path, "--http")
    undo = run(path, "--undo", "--dry-run").stdout
    assert re.search(r'^-.*"proxy",', undo, re.MULTILINE)
    assert "not-a-real" not in undo


@pytest.mark.parametrize(
    ("name", "client"),
    [
        ("claude_code.mcp.json", "claude-code"),
        ("claude_user.json", "claude-code"),
        ("claude_desktop_crlf.json", "claude-code"),
        ("cursor.json", "cursor"),
        ("vscode.json", "vscode"),
        ("codex.toml", "codex"),
        ("bom_minified.json", "generic"),
        ("generic_servers.json", "generic"),
    ],
)
def test_the_client_is_known_by_name_and_content(name: str, client: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    assert json.loads(run(path, "--dry-run", "--json").stdout)["client"] == client
    elsewhere = tmp_path / f"other{path.suffix}"
    path.replace(elsewhere)
    found = json.loads(run(elsewhere, "--dry-run", "--json").stdout)
    assert len(found["servers"]) >= 2
    assert found == json.loads(run(elsewhere, "--dry-run", "--json", "--client", found["client"]).stdout)


def test_comments_and_shape_stay(tmp_path: Path) -> None:
    path = placed("vscode.json", tmp_path)
    run(path, "--http")
    text = path.read_text()
    assert (
        f'''      "command": "{PROGRAM}", // the newest
      "args": [
        // no window
        "proxy", "stdio", "--server", "playwright", "--", "npx",
        "-y", /* yes */ "@playwright/mcp@latest",
        "--api-key=${{input:key}}",
      ],
'''
        in text
    )
    assert '"--", "uvx", "mcp-server-fetch" ],},' in text
    assert '"--", "${workspaceFolder}/run.sh" // none\n    ]' in text
    assert '"http://127.0.0.1:8790/mcp/known/a/secret-path/mcp/"' in text
    assert '"https://${input:host}/mcp"' in text


def test_args_that_were_not_there_get_a_line_of_their_own(tmp_path: Path) -> None:
    path = placed("claude_desktop_crlf.json", tmp_path)
    run(path)
    words = b'"args": ["proxy", "stdio", "--server", "no args", "--", "C:\\\\Program Files\\\\srv.exe"],\r\n\t\t\t"command": "'
    assert b"{\r\n\t\t\t" + words in path.read_bytes()


def test_the_shapes_of_toml_stay(tmp_path: Path) -> None:
    codex = placed("codex.toml", tmp_path)
    run(codex)
    text = codex.read_text()
    assert (
        f'''command = "{PROGRAM}"          # the newest
args = ["proxy", "stdio", "--server", "context7", "--", "npx", "-y", "@upstash/context7-mcp"]
'''
        in text
    )
    assert (
        """    # first
    "proxy", "stdio", "--server", "with space", "--", 'C:\\Tools\\srv.exe',
    "--root", # the root
"""
        in text
    )
    assert (
        f'''    args = ["proxy", "stdio", "--server", "no_args", "--", "srv"]
    command = "{PROGRAM}"   # indented
'''
        in text
    )
    dotted = placed("codex_dotted_crlf_bom.toml", tmp_path)
    run(dotted)
    data = dotted.read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n")
    assert 'mcp_servers."d.o.t.s".args = ["proxy"' in data.decode()


def test_a_dry_run_shows_args_but_no_secret_among_them(tmp_path: Path) -> None:
    token, key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8", "Zq8" + "rT5vW2xY9aB4cD7e"
    args = ["run", "-i", "-e", f"API_KEY={key}", "--token", key, token, "image:latest"]
    entry = {"command": "docker", "args": args, "env": {"PIN": 4711, "list": [key]}}
    for indent in (2, None):
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps({"note": key, "mcpServers": {"a": entry}}, indent=indent))
        shown = run(path, "--dry-run").stdout
        assert not [secret for secret in (token, key, "4711") if secret in shown]
        assert '"docker"' in shown
    assert '"--token", "…", "…", "image:latest"' in shown


def test_hunks_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    many = {f"s{number}": {"command": "x", "args": [], "env": {str(n): "" for n in range(9)}} for number in range(3)}
    path.write_text(json.dumps({"mcpServers": many}, indent=1))
    before = path.read_text().splitlines()
    shown = run(path, "--dry-run").stdout.splitlines()
    run(path)
    after = path.read_text().splitlines()
    heads = [index for index, line in enumerate(shown) if line.startswith("@@")]
    assert len(heads) == 3
    for head in heads:
        old, new = (int(number) for number in re.findall(r"[-+](\d+)", shown[head]))
        assert shown[head + 1].split() == before[old - 1].split() == after[new - 1].split()


def test_hunks_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    shown = run(placed("claude_user.json", tmp_path), "--dry-run").stdout  # projects before the user's own servers
    starts = [int(start) for start in re.findall(r"(?m)^@@ -(\d+)", shown)]
    assert len(starts) > 1 and starts == sorted(starts)


def test_a_terminal_gets_colours_and_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"\u202ea\x9b31m": {"command": "x"}}}, ensure_ascii=False))
    from click.testing import CliRunner

    from services.cli.proxy_wrap import wrap

    shown = CliRunner().invoke(wrap, [str(path), "--dry-run"], color=True).stdout
    assert "\x1b[32m+" in shown and "\x1b[31m-" in shown
    assert "\u202e" not in shown and "\x9b" not in shown
