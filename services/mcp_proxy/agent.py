"""Which agent a stdio proxy works for: the names of the processes above it, else what the environment says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.events import Runtime

_MARKS = ("CLAUDE_CODE_SESSION_ID", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")
"""Variables of the processes that Claude Code starts; the first names the session as its hooks do. The other runtimes set
none for an MCP server (Codex and Hermes hand on a short list of harmless ones).
"""
_NAMES: tuple[tuple[re.Pattern[str], Runtime], ...] = (
    (re.compile(r"claude(-code)?"), "claude_code"),
    (re.compile(r"codex(-.*)?"), "codex"),
    (re.compile(r"openclaw(-.*)?"), "openclaw"),
    (re.compile(r"hermes(-.*|_.*)?"), "hermes"),
)
_ANCESTORS = 6
_MAX_SESSION = 128


@dataclass(frozen=True, slots=True)
class Agent:
    """What is known of the agent; `other` and None where nothing says."""

    runtime: Runtime = "other"
    session_id: str | None = None


def find(env: Mapping[str, str] = os.environ, pid: int | None = None) -> Agent:
    """The agent above this process. `pid`: of the process to begin at, by default the parent.

    The nearest process with a known name counts before the environment: that may come from an agent further up, in
    whose shell this one was started.
    """
    runtime = _named(os.getppid() if pid is None else pid)
    if runtime is None and any(env.get(mark) for mark in _MARKS):
        runtime = "claude_code"
    session = env.get(_MARKS[0], "")
    told = runtime == "claude_code" and 0 < len(session) <= _MAX_SESSION and session.isprintable()
    return Agent(runtime or "other", session if told else None)


def _named(pid: int) -> Runtime | None:
    for words in _above(pid):
        for word in words:
            for pattern, runtime in _NAMES:
                if pattern.fullmatch(word):
                    return runtime
    return None


def _above(pid: int) -> Iterator[list[str]]:
    """Of each process from `pid` upwards: its name, and the base names of its program and of the script it runs."""
    for _ in range(_ANCESTORS):
        try:
            # proc_pid_stat(5): the name is in parentheses and may hold some itself.
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].decode(errors="replace").split("\0")[:2]
            pid = int(rest.split()[1])
        except (OSError, ValueError, IndexError):
            return
        yield [name, *(_base(argument) for argument in arguments)]
        if pid <= 1:
            return


def _base(argument: str) -> str:
    return argument.rsplit("/", 1)[-1].removesuffix(".js").removesuffix(".mjs").removesuffix(".py")
