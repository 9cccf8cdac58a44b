"""Which agent a proxy works for, told by real processes above it and by the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.mcp_proxy.agent import Agent

from .parts import ROOT, environment

pytestmark = pytest.mark.integration

_FIND = "from services.mcp_proxy import agent; print(repr(agent.find()))"
_RUN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
SESSION = "5f2b7b52-6c4e-4d0e-9d0a-0a4b1c8f1c11"


def found(tmp_path: Path, *names: str, **env: str) -> Agent:
    """What a process finds below processes of these names, the last of them its parent."""
    command = [sys.executable, "-c", _FIND]
    for name in reversed(names):
        link = tmp_path / name
        link.symlink_to(sys.executable)
        command = [str(link), "-c", _RUN, *command]
    # `-P` of the proxy has no part in this: the tree is found by the folder.
    env = {**environment(tmp_path), "PYTHONPATH": str(ROOT), **env}
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=30)
    return eval(out.stdout, {"Agent": Agent})  # the repr of a dataclass that this test printed itself


def test_the_nearest_known_process_is_the_agent(tmp_path: Path) -> None:
    assert found(tmp_path, "openclaw", "codex", "wrapper") == Agent("codex")


def test_a_session_in_the_environment_is_claude_codes(tmp_path: Path) -> None:
    env = {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": SESSION}
    assert found(tmp_path, "wrapper", **env) == Agent("claude_code", SESSION)


def test_an_agent_in_another_ones_shell_does_not_get_its_session(tmp_path: Path) -> None:
    env = {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": SESSION}
    assert found(tmp_path, "claude", "codex", **env) == Agent("codex")


@pytest.mark.parametrize("session", ["", "x" * 1000, "a\x1b[2Jb"])
def test_a_session_that_is_none_is_not_taken(tmp_path: Path, session: str) -> None:
    assert found(tmp_path, "claude", CLAUDE_CODE_SESSION_ID=session) == Agent("claude_code")


def test_nobody_known_is_other(tmp_path: Path) -> None:
    # The names above this test run are not its business: seven of its own are more than are looked at.
    assert found(tmp_path, *(f"nobody{number}" for number in range(7))) == Agent()
