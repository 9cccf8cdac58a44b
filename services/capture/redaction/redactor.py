"""The redactor: replaces secrets in texts and JSON values by keyed placeholders, the same secret always by the same."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from services.capture.keyed import Keyed
from services.capture.redaction.keys import argv_contexts, name_of, plausible
from services.capture.redaction.rules import RulePack
from services.capture.redaction.scan import Found, Scanner, merge

FINGERPRINT_HEX = 16
_MAX_SECRETS = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


class Finding(NamedTuple):
    """One secret that was found: its kind and the first 16 hex digits of HMAC-SHA256(key, secret)."""

    kind: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text free of known secrets, and what was found in it."""

    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Findings by kind."""
        return dict(Counter(f.kind for f in self.findings))


@dataclass(frozen=True, slots=True)
class Examined:
    """A value free of known secrets, what was found, and the secrets themselves, for masking what is derived from
    the value."""

    value: Any
    findings: tuple[Finding, ...] = ()
    secrets: dict[bytes, Finding] = field(default_factory=dict, repr=False)


def placeholder(kind: str, fingerprint: str) -> str:
    """What stands where a secret stood."""
    return f"‹redacted:{kind}:{fingerprint}›"


def to_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("�", text).encode()


@lru_cache(maxsize=1)
def _default() -> RulePack:
    return RulePack.default()


@lru_cache(maxsize=8)
def _scanner(rules: RulePack) -> Scanner:
    # Compiling the gate takes most of a second; all redactors of a process share it.
    return Scanner(rules)


class Redactor:
    """Redaction under one key. Shareable between threads.

    `key`: at least 16 bytes; fingerprints made with it compare only among holders of the same key.
    """

    def __init__(self, key: bytes, rules: RulePack | None = None) -> None:
        if len(key) < 16:
            raise ValueError(f"redaction key has {len(key)} bytes; it needs at least 16")
        self._keyed = Keyed(key)
        self._scanner = _scanner(rules or _default())

    def fingerprint(self, secret: bytes) -> str:
        """First 16 hex digits of HMAC-SHA256(key, secret)."""
        return self._keyed.hex(secret)[:FINGERPRINT_HEX]

    def scan(self, text: bytes) -> tuple[Finding, ...]:
        """What a text holds, without rewriting it."""
        return tuple(self._finding(f) for f in self._scanner.scan(text))

    def text(self, text: str) -> Redacted:
        """The text with every secret replaced. Redacting twice changes nothing more."""
        raw = to_bytes(text)
        found = self._scanner.scan(raw)
        if not found:
            return Redacted(text if len(raw) == len(text) or not _SURROGATE.search(text) else raw.decode())
        findings = tuple(self._finding(f) for f in found)
        return Redacted(_replace(raw, found, findings).decode("utf-8", "replace"), findings)

    def value(self, value: Any) -> tuple[Any, tuple[Finding, ...]]:
        """A JSON value with secrets replaced in values and keys; the value itself (same object) when nothing was
        found.

        Key names are context: a string or number under `password` is hidden whatever it looks like. Nesting of any
        depth.
        """
        done = self.examine(value)
        return done.value, done.findings

    def examine(self, value: Any) -> Examined:
        """As `value`, with the secrets too; those are never to leave the process."""
        if isinstance(value, str):
            raw = to_bytes(value)
            inside = self._scanner.scan(raw)
            if not inside:
                return Examined(value if raw.isascii() or not _SURROGATE.search(value) else raw.decode())
            here = tuple(self._finding(f) for f in inside)
            text = _replace(raw, inside, here).decode("utf-8", "replace")
            return Examined(text, here, {f.secret: n for f, n in zip(inside, here, strict=True)})
        leaves = _Leaves(value)
        found = self._scan_leaves(leaves)
        return self._replaced(value, leaves, found) if found or leaves.lone_surrogates() else Examined(value)

    def examine_large(self, body: bytes) -> Examined:
        """Findings of a body too large to rewrite, by windows; its value is None."""
        findings: list[Finding] = []
        secrets: dict[bytes, Finding] = {}
        for f in self._scanner.scan_large(body):
            finding = secrets.get(f.secret) or self._finding(f)
            findings.append(finding)
            if len(secrets) < _MAX_SECRETS:
                secrets[f.secret] = finding
        return Examined(None, tuple(findings), secrets)

    def texts(self, value: Any, own: Callable[[str], bool]) -> tuple[Any, tuple[Finding, ...]]:
        """As `value`, but without names as context, and leaving numbers alone in texts that `own` says are the
        caller's."""
        leaves = _Leaves(value)
        leaves.named.clear()
        found = {
            i: kept
            for i, inside in self._scan_leaves(leaves).items()
            if (kept := [f for f in inside if f.rank > 1 or not own(leaves.texts[i])])
        }
        if not found:
            return value, ()
        done = self._replaced(value, leaves, found)
        return done.value, done.findings

    def may_hold(self, serialised: bytes) -> bool:
        """Whether JSON bytes hold a secret that can be seen without taking the JSON apart."""
        return self._scanner.may_hold(serialised)

    def _replaced(self, value: Any, leaves: _Leaves, found: dict[int, list[Found]]) -> Examined:
        findings: list[Finding] = []
        secrets: dict[bytes, Finding] = {}
        texts = leaves.lone_surrogates()
        for i in sorted(found):
            here = tuple(self._finding(f) for f in found[i])
            findings += here
            secrets.update((f.secret, n) for f, n in zip(found[i], here, strict=True))
            texts[i] = _replace(to_bytes(leaves.texts[i]), found[i], here).decode("utf-8", "replace")
        return Examined(_rebuild(value, texts), tuple(findings), secrets)

    def _finding(self, f: Found) -> Finding:
        return Finding(f.kind, self.fingerprint(f.secret))

    def _scan_leaves(self, leaves: _Leaves) -> dict[int, list[Found]]:
        found: dict[int, list[Found]] = {}
        for i, context in leaves.named.items():
            hidden = _by_name(context, leaves.texts[i])
            if hidden is not None:
                found[i] = [hidden]
        inside = self._scanner.scan(leaves.joined())
        if inside:
            raws = [to_bytes(t) for t in leaves.texts]
            starts = list(accumulate((len(r) + 1 for r in raws[:-1]), initial=0))
            for f in inside:
                i = bisect_right(starts, f.start) - 1
                while i < len(raws) and starts[i] < f.end:
                    start, end = max(f.start - starts[i], 0), min(f.end - starts[i], len(raws[i]))
                    if start < end:
                        found.setdefault(i, []).append(f._replace(start=start, end=end))
                    i += 1
        return {i: merge(f) for i, f in found.items()}


def _by_name(context: str, text: str) -> Found | None:
    """The whole leaf as a finding, if the name it stands under and its looks say so."""
    name = name_of(context)
    if (
        name is None
        or "‹redacted:" in text
        or not plausible(name, context, text, "flag" if context.startswith("-") else "whole")
    ):
        return None
    raw = to_bytes(text)
    return Found(0, len(raw), name.kind, raw, 1)


def _replace(raw: bytes, found: list[Found], findings: tuple[Finding, ...]) -> bytes:
    parts: list[bytes] = []
    last = 0
    for f, finding in zip(found, findings, strict=True):
        parts += (raw[last : f.start], placeholder(*finding).encode())
        last = f.end
    parts.append(raw[last:])
    return b"".join(parts)


# Forms in which a name and its value stand side by side: environment lists, HAR headers, form fields.
_NAME_KEYS = ("name", "key", "Name", "Key", "header")
_VALUE_KEYS = frozenset(("value", "Value"))
_COOKIES = frozenset(("cookies", "Cookies", "cookie", "Cookie"))


def _pair_name(node: dict[Any, Any]) -> str | None:
    if "value" in node or "Value" in node:
        for key in _NAME_KEYS:
            name = node.get(key)
            if isinstance(name, str):
                return name
    return None


class _Slot(NamedTuple):
    """Where a leaf sits: the element `at` of a container, or the key `at` itself."""

    container: Any
    at: Any
    is_key: bool


class _Leaves:
    """Keys and scalars of a JSON value, and which of them stand under a telling name. Walks without recursion."""

    def __init__(self, value: Any, slots: list[_Slot] | None = None) -> None:
        self.texts: list[str] = []
        self.lines: list[int] = []
        self.named: dict[int, str] = {}
        self.odd = False
        texts, lines = self.texts, self.lines
        stack: list[tuple[Any, str | None]] = [(value, None)]
        while stack:
            node, context = stack.pop()
            if isinstance(node, dict):
                pair = _pair_name(node)
                secret_map = node.get("kind") == "Secret"
                for key, child in node.items():
                    name = key if isinstance(key, str) else str(key)
                    texts.append(name)
                    if slots is not None:
                        slots.append(_Slot(node, key, True))
                    under = context or name if pair is None or name not in _VALUE_KEYS else pair
                    if isinstance(child, (dict, list, tuple)):
                        if secret_map and name in ("data", "stringData"):
                            stack.append((child, "secret"))
                        else:
                            stack.append((child, name if name in _COOKIES or not isinstance(child, dict) else None))
                        continue
                    named = name_of(under) is not None
                    if not isinstance(child, str):
                        if not named or child is None or isinstance(child, bool):
                            continue
                        child = str(child)
                    if named:
                        self.named[len(texts)] = under
                    texts.append(child)
                    if slots is not None:
                        slots.append(_Slot(node, key, False))
            elif isinstance(node, (list, tuple)):
                flags = argv_contexts(node)
                if context is not None and name_of(context) is None:
                    context = None
                for i, child in enumerate(node):
                    if isinstance(child, str):
                        under_flag = flags.get(i, context)
                        if under_flag is not None:
                            self.named[len(texts)] = under_flag
                        lines.append(len(texts))
                        texts.append(child)
                        if slots is not None:
                            slots.append(_Slot(node, i, False))
                    elif isinstance(child, (dict, list, tuple)):
                        stack.append((child, None))

    def lone_surrogates(self) -> dict[int, str]:
        """Texts that could not be written as UTF-8, and what they become."""
        if not self.odd:
            return {}
        return {i: to_bytes(t).decode() for i, t in enumerate(self.texts) if _SURROGATE.search(t)}

    def joined(self) -> bytes:
        """All texts as one: siblings of a list as lines, so that a key printed as a list of lines is one key; else
        NUL between."""
        if not self.lines:
            return self._bytes("\x00".join(self.texts))
        parts = ["\x00"] * (2 * len(self.texts))
        parts[::2] = self.texts
        previous = -2
        for i in self.lines:
            if i == previous + 1:
                parts[2 * previous + 1] = "\n"
            previous = i
        return self._bytes("".join(parts))

    def _bytes(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.odd = True
            return to_bytes(text)


def _rebuild(value: Any, texts: dict[int, str]) -> Any:
    """A copy of a JSON value with the leaves numbered in `texts` replaced; a key that then exists twice gets a `_`."""
    copy = _copy(value)
    slots: list[_Slot] = []
    _Leaves(copy, slots)
    renamed: dict[int, tuple[dict[str, Any], dict[Any, str]]] = {}
    for i, text in texts.items():
        container, at, is_key = slots[i]
        if is_key:
            renamed.setdefault(id(container), (container, {}))[1][at] = text
        else:
            container[at] = text
    for mapping, names in renamed.values():
        items = list(mapping.items())
        mapping.clear()
        for key, child in items:
            new = names.get(key, key)
            while new in mapping:
                new += "_"
            mapping[new] = child
    return copy


def _copy(value: Any) -> Any:
    """Dicts and lists copied to any depth, tuples as lists."""
    root: list[Any] = [value]
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        for at, child in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(child, dict):
                node[at] = dict(child)
                stack.append(node[at])
            elif isinstance(child, (list, tuple)):
                node[at] = list(child)
                stack.append(node[at])
    return root[0]
