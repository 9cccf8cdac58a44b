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
    """One simple command of a shell line: `git push --force` is argv0 `git`, sub `push`, flags [`--force`].

    argv0 is a base name; flags come without values (`--token=x` is `--token`, `-pSECRET` is `-p`). A wrapper (sudo,
    env, xargs, `bash -c`, `find -exec`) is a command, and so is what it runs.
    """

    argv0: str
    sub: str | None = None
    flags: tuple[str, ...] = ()


class PathFact(_Frozen):
    """A path the call touches, normalised (`.` and `..` resolved, absolute where the working folder is known,
    `$HOME` as `~`), never by looking at a disk. A path longer than 512 characters begins with `…`.
    """

    path: str
    kind: PathKind


class Host(_Frozen):
    """A network destination. `domain` is the registered domain (Public Suffix List) or the address."""

    host: str
    domain: str
    port: int | None = None
    loopback: bool = False


class Facts(_Frozen):
    """All facts of one tool call or result. Lists hold at most MAX_ITEMS entries; `truncated` says when one
    overflowed or not all of the input was looked at.

    `secret_kinds` names kinds (`aws_access_key`, …), `fingerprints` holds keyed HMACs (16 hex characters) of the
    secrets found, also behind base64, hex, URL or JSON escaping. Those of an input are followed by HMACs of its words
    that could be a secret, so that a value which an earlier output held under a telling name is known again without
    that name. `pipe_to_shell`: a shell or interpreter runs what a network command or decoder brings.
    `recursive_force`: rm -rf in any spelling, find -delete, git clean -f, a forced push.
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
