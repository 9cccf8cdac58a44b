"""Facts: what rules need from a tool call and what redacted, truncated summaries lose.

Computed from the whole payload before redaction and truncation; bounded; free of secrets. A rule asks facts, so that
neither padding nor masking hides an act.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PathKind = Literal["read", "write", "delete", "exec"]
MAX_ITEMS = 64


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Command(_Frozen):
    """One simple command of a shell line: `git push --force` is argv0 `git`, sub `push`, flags [`--force`]."""

    argv0: str
    sub: str | None = None
    flags: tuple[str, ...] = ()


class PathFact(_Frozen):
    """A path the call touches, normalised (`~` and `.` resolved where the text allows, never by looking at a disk)."""

    path: str
    kind: PathKind


class Host(_Frozen):
    """A network destination. `domain` is the registered domain (Public Suffix List) or the address."""

    host: str
    domain: str
    port: int | None = None
    loopback: bool = False


class Facts(_Frozen):
    """All facts of one tool call or result. Lists hold at most MAX_ITEMS entries; `truncated` says when one overflowed.

    `secret_kinds` names kinds (`aws_access_key`, …), `fingerprints` holds keyed HMACs of secret-like values
    (16 hex characters), also of values found behind base64, hex, URL or JSON escaping.
    """

    commands: tuple[Command, ...] = ()
    paths: tuple[PathFact, ...] = ()
    hosts: tuple[Host, ...] = ()
    secret_kinds: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    packages: tuple[str, ...] = Field(default=(), description="package installs as manager:name, e.g. pip:requests")
    pipe_to_shell: bool = False
    recursive_force: bool = False
    sudo: bool = False
    background: bool = False
    truncated: bool = False
