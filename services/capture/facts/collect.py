"""Gathers facts while a call is read: normalises paths, keeps first sightings, and chooses what stays when there
are too many."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import TypeVar

from schemas.facts import MAX_ITEMS, Command, Facts, Host, PathFact, PathKind
from services.capture.words import words

_T = TypeVar("_T")
MAX_PATH = 512
# Collected at most; of these, MAX_ITEMS are kept.
_POOL = 2048
_IGNORED = frozenset(("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", "/dev/tty", "-", "", "."))
_SLASHES = re.compile(r"/{2,}")
_BRACES = re.compile(r"([^{}]*)\{([^{}]*,[^{}]*)\}(.*)", re.DOTALL)
# What padding would be used to push out of a full list. Only the order of keeping: what is sensitive is for rules to
# say.
_TELLING_PATH = re.compile(
    r"(?i)\.env|\.ssh|id_(?:rsa|ed25519|ecdsa|dsa)|passwd|shadow|sudoers|kube|\.aws|\.azure|gcloud|credential|secret|token|\.pem|\.key|\.p12"
    r"|\.netrc|\.npmrc|\.pypirc|\.pgpass|\.git-credentials|\.docker/config|history|crontab|/etc/|\.bashrc|\.profile|authorized_keys|CLAUDE|AGENTS"
)
_TELLING_COMMAND = frozenset(
    words(
        "rm dd mkfs shred curl wget nc ncat netcat socat ssh scp sftp rsync sudo su doas bash sh zsh "
        "eval chmod chown crontab systemctl kubectl docker aws gcloud az git python python3 perl ruby "
        "node base64 openssl gpg kill iptables mount nmap psql mysql mongo redis-cli terraform"
    )
)


def expand_braces(text: str) -> list[str]:
    """`/etc/{passwd,shadow}` → both, one level, at most 16."""
    if "{" not in text or "," not in text:
        return [text]
    m = _BRACES.match(text)
    if m is None:
        return [text]
    return [m.group(1) + part + m.group(3) for part in m.group(2).split(",")[:16]]


def normalise(path: str, cwd: str | None) -> str:
    """Absolute where `cwd` allows; `.`, `..` and repeated slashes resolved; `~` and Windows paths stay; never
    looks at a disk."""
    if path.startswith("file://"):
        path = path[7:]
    if "\\" in path and re.match(r"[A-Za-z]:\\|\\\\", path):
        return path[-MAX_PATH:]
    path = _SLASHES.sub("/", path)
    if path.startswith("/proc/self/root/"):
        path = path[15:]
    if not path.startswith(("/", "~")) and cwd:
        path = f"{cwd}/{path}"
    # An absolute path without these is normal already.
    if path[:1] != "/" or "/." in path or path[-1] == "/":
        path = posixpath.normpath(path) if path else path
    return path if len(path) <= MAX_PATH else "…" + path[1 - MAX_PATH :]


@lru_cache(maxsize=4096)
def _command(argv0: str, sub: str | None, flags: tuple[str, ...]) -> Command:
    return Command(argv0=argv0, sub=sub, flags=flags)


@lru_cache(maxsize=4096)
def _path(path: str, kind: PathKind) -> PathFact:
    return PathFact(path=path, kind=kind)


class Collector:
    """Facts of one call in the making. `cwd` follows `cd`."""

    def __init__(self, cwd: str | None) -> None:
        self.cwd = cwd
        self._commands: dict[tuple[str, str | None, tuple[str, ...]], None] = {}
        self._paths: dict[tuple[str, PathKind], None] = {}
        self._hosts: dict[Host, None] = {}
        self._packages: dict[str, None] = {}
        self.pipe_to_shell = False
        self.recursive_force = False
        self.sudo = False
        self.background = False
        self.truncated = False
        # Paths that a network command wrote in this call, so that running one is seen as what it is.
        self.fetched: set[str] = set()

    def command(self, argv0: str, sub: str | None, flags: Iterable[str]) -> None:
        if len(self._commands) < _POOL:
            self._commands[(argv0[:128], sub, tuple(flags))] = None
        else:
            self.truncated = True

    def path(self, text: str, kind: PathKind) -> str:
        """Adds a path as written in the call; returns it normalised."""
        shown = ""
        for one in expand_braces(text):
            if (
                one in _IGNORED
                or "\x00" in one
                or "\n" in one
                or one.startswith(("/dev/fd/", "/dev/tcp/", "/dev/udp/", "<(", ">("))
            ):
                continue
            shown = normalise(one, self.cwd)
            if len(self._paths) < _POOL:
                self._paths[(shown, kind)] = None
            else:
                self.truncated = True
        return shown

    def host(self, found: Host | None) -> None:
        if found is not None:
            if len(self._hosts) < _POOL:
                self._hosts[found] = None
            else:
                self.truncated = True

    def package(self, manager: str, name: str) -> None:
        if len(self._packages) < _POOL:
            self._packages[f"{manager}:{name[:128]}"] = None

    def strings(self) -> list[str]:
        """Every text these facts would show, for the check that none holds a secret."""
        found = [t for argv0, sub, flags in self._commands for t in (argv0, sub or "", *flags)]
        found += [p for p, _ in self._paths]
        found += [h.host for h in self._hosts]
        found += self._packages
        return found

    def facts(self, kinds: tuple[str, ...], fingerprints: tuple[str, ...], mask: dict[str, str]) -> Facts:
        """The facts, with the texts in `mask` replaced."""

        def masked(text: str) -> str:
            return mask.get(text, text) if mask else text

        commands = self._kept(self._commands, lambda c: c[0] in _TELLING_COMMAND)
        paths = self._kept(self._paths, lambda p: _TELLING_PATH.search(p[0]) is not None)
        hosts = self._kept(self._hosts, lambda h: not h.loopback)
        packages = self._kept(self._packages, lambda _: False)
        if mask:
            commands = [
                (masked(argv0), masked(sub) if sub else sub, tuple(map(masked, flags)))
                for argv0, sub, flags in commands
            ]
            hosts = [
                h
                if h.host not in mask
                else Host(host=mask[h.host], domain=mask[h.host], port=h.port, loopback=h.loopback)
                for h in hosts
            ]
        return Facts(
            commands=tuple([_command(*c) for c in commands]),
            paths=tuple([_path(masked(p), k) for p, k in paths]),
            hosts=tuple(hosts),
            secret_kinds=kinds[:MAX_ITEMS],
            fingerprints=fingerprints[:MAX_ITEMS],
            packages=tuple(map(masked, packages)),
            pipe_to_shell=self.pipe_to_shell,
            recursive_force=self.recursive_force,
            sudo=self.sudo,
            background=self.background,
            truncated=self.truncated or len(kinds) > MAX_ITEMS or len(fingerprints) > MAX_ITEMS,
        )

    def _kept(self, found: dict[_T, None], telling: Callable[[_T], bool]) -> Collection[_T]:
        if len(found) <= MAX_ITEMS:
            return found
        self.truncated = True
        items = list(found)
        chosen = sorted(range(len(items)), key=lambda i: not telling(items[i]))[:MAX_ITEMS]
        return [items[i] for i in sorted(chosen)]
