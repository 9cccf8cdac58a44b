"""Runs `agenttrace proxy wrap`, and what a wrapped entry must be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from schemas.errors import UserError
from services.cli.proxy_wrap import wrap

CONFIGS = Path(__file__).parent / "configs"
PROGRAM = str(Path(sys.executable).with_name("agenttrace"))
NAMES = {
    "claude_code.mcp.json": ".mcp.json",
    "claude_user.json": ".claude.json",
    "claude_desktop_crlf.json": "claude_desktop_config.json",
    "cursor.json": ".cursor/mcp.json",
    "vscode.json": ".vscode/mcp.json",
    "codex.toml": ".codex/config.toml",
}
"""What clients call these files; the others are found by their content."""

ALL = sorted(path.name for path in CONFIGS.iterdir() if path.suffix in (".json", ".toml"))


def placed(name: str, folder: Path) -> Path:
    """A copy where a client has it."""
    path = folder / NAMES.get(name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((CONFIGS / name).read_bytes())
    return path


def run(*words: object, code: int = 0) -> Result:
    """The command in this process; fails unless it ends with `code`."""
    result = CliRunner().invoke(wrap, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*words: object) -> UserError:
    """The error that the command ends with, which must be for people: one line."""
    error = CliRunner().invoke(wrap, [str(word) for word in words]).exception
    assert isinstance(error, UserError), error
    assert "\n" not in str(error)
    return error


def proxied(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry of a stdio server as a wrap must leave it."""
    words = ["proxy", "stdio", "--server", name, "--", entry["command"], *entry.get("args", [])]
    return {**entry, "command": PROGRAM, "args": words}
