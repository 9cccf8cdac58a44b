"""The scan: gate first, RE2 for the spans of what the gate named, then the same again behind each encoding found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from services.capture.redaction import views
from services.capture.redaction.checks import CHECKS, entropy
from services.capture.redaction.gate import BASE64, ESCAPE, PERCENT, Gate
from services.capture.redaction.keys import Judge, Name, name_of, plausible
from services.capture.redaction.rules import Rule, RulePack

# JSON in a URL in base64 is two more readings; deeper nesting than this is not followed.
MAX_DEPTH = 4
# Hiding one secret can uncover another that it overlapped. Each round hides at least one, and in practice the second
# is empty.
MAX_ROUNDS = 8
NEAR = 1024
# How far in front of the end of a gate match the whole match may begin.
WINDOW_BEFORE = 768
# Below this, one search over all is cheaper than several over windows.
SHORT = 4096
# Large texts are read in windows; the overlap is longer than any secret but a private key, which its first line gives
# away.
WINDOW = 256 * 1024
OVERLAP = 16 * 1024


class Found(NamedTuple):
    """A secret at bytes [start, end) of the text; `secret` is its decoded value, `rank` its rule's."""

    start: int
    end: int
    kind: str
    secret: bytes
    rank: int


class Scanner:
    """Finds secrets in UTF-8 bytes. NUL in the text separates values: no finding spans it."""

    def __init__(self, pack: RulePack) -> None:
        self._rules = pack.rules
        self._gate = Gate(pack.rules)
        kinds = "|".join(sorted(pack.kinds | set(NAMED_KINDS), key=len, reverse=True))
        self._placeholder = re.compile(
            rf"(?:\xe2\x80\xb9|\\+u2039|%E2%80%B9)redacted:(?:{kinds}):[0-9a-f]{{16}}(?:\xe2\x80\xba|\\+u203a|%E2%80%BA)".encode(
                "latin-1"
            )
        )

    def scan(self, text: bytes) -> list[Found]:
        """All secrets of `text`, merged where they overlap, in order."""
        fresh = merge(self._find(text, 0))
        if not fresh:
            return []
        every = list(fresh)
        hidden = bytearray(text)
        for _ in range(MAX_ROUNDS):
            for f in fresh:
                hidden[f.start : f.end] = bytes(f.end - f.start)
            fresh = merge(self._find_near(hidden, fresh))
            if not fresh:
                break
            every += fresh
        return merge(every)

    def may_hold(self, serialised: bytes) -> bool:
        """Whether JSON bytes, written without blanks, hold a secret that can be seen without taking the JSON apart."""
        # All escapes undone: what texts without a backslash of their own say. The others are also read as they stand;
        # no text can hold `","` unescaped.
        texts = views.unescaped(serialised)
        if b"\\\\" in serialised:
            stand = b"\x00".join(part for part in serialised.split(b'","') if b"\\\\" in part)
            if self._find(stand, 0, escapes=False):
                return True
        return bool(self._find(texts, 0))

    def scan_large(self, text: bytes) -> Iterator[Found]:
        """As `scan`, window by window, with offsets of the whole; a secret longer than OVERLAP / 2 may be found in
        part only."""
        for base in range(0, max(len(text) - OVERLAP, 1), WINDOW - OVERLAP):
            first = base + OVERLAP // 2 if base else 0
            last = base + WINDOW - OVERLAP // 2 if base + WINDOW < len(text) else len(text)
            for f in self.scan(text[base : base + WINDOW]):
                # Each start lies in exactly one window's own part.
                if first <= base + f.start < last:
                    yield f._replace(start=base + f.start, end=base + f.end)

    def _find_near(self, text: bytearray, hidden: list[Found]) -> list[Found]:
        """What can be found now within NEAR bytes of what was just hidden; elsewhere nothing changed."""
        places: list[tuple[int, int]] = []
        for f in hidden:
            start = text.rfind(b"\n", max(f.start - 2 * NEAR, 0), max(f.start - NEAR, 0)) + 1 or max(
                f.start - 2 * NEAR, 0
            )
            end = text.find(b"\n", f.end + NEAR, f.end + 2 * NEAR)
            end = min(f.end + 2 * NEAR, len(text)) if end < 0 else end
            if places and start <= places[-1][1]:
                places[-1] = (places[-1][0], end)
            else:
                places.append((start, end))
        found: list[Found] = []
        for start, end in places:
            found += (
                f._replace(start=f.start + start, end=f.end + start) for f in self._find(bytes(text[start:end]), 0)
            )
        return found

    def _find(self, text: bytes, depth: int, *, escapes: bool = True) -> list[Found]:
        hits = self._gate.hits(text)
        if not hits:
            return []
        if b"redacted:" in text:
            text = self._placeholder.sub(_blank, text)
        found: list[Found] = []
        for hit, ends in hits.items():
            if hit >= 0:
                found += self._spans(self._rules[hit], text, ends)
            elif depth < MAX_DEPTH and (escapes or hit != ESCAPE):
                found += self._behind(hit, text, ends, depth + 1)
        return found

    def _spans(self, rule: Rule, text: bytes, ends: list[int]) -> Iterator[Found]:
        spec, groups = rule.spec, rule.groups
        first = 1 if spec.judge is None else 2
        for m in _matches(rule, text, ends):
            start, end = m.span()
            for g in range(groups, first - 1, -1):
                s, e = m.span(g)
                if s >= 0:
                    start, end = s, e
                    break
            secret = text[start:end]
            kind = spec.kind
            if spec.judge is not None:
                following = _NEXT_FIELD.search(secret)
                if following is not None:
                    end = start + following.start()
                    secret = text[start:end]
                key = next(group for g in range(1, groups) if (group := m.group(g)) is not None)
                named = judged(key.decode("utf-8", "replace"), secret.decode("utf-8", "replace"), spec.judge)
                if named is None:
                    continue
                kind = named.kind
            if spec.min_entropy is not None and entropy(secret) < spec.min_entropy:
                continue
            if spec.check is not None and not CHECKS[spec.check](secret):
                continue
            if rule.allow is not None and rule.allow.fullmatch(secret):
                continue
            while end < len(text) and text[end] & 0xC0 == 0x80:
                end += 1
            yield Found(start, end, kind, block(secret) if spec.normalise else secret, rule.rank)

    def _behind(self, sign: int, text: bytes, ends: list[int], depth: int) -> Iterator[Found]:
        if sign == ESCAPE:
            lines = views.escaped_lines(text)
            inner = self._find(views.unescaped(lines), depth)
            if inner:
                to_lines, to_text = views.View(len(lines)), views.View(len(text))
                views.unescaped(views.escaped_lines(text, to_text), to_lines)
                for f in inner:
                    start, end = to_text.span(*to_lines.span(f.start, f.end))
                    yield f._replace(start=start, end=end)
            return
        if sign == PERCENT:
            for offset, token in views.percent_tokens(text, ends):
                inner = self._find(views.unquoted(token), depth)
                if inner:
                    to_token = views.View(len(token))
                    views.unquoted(token, to_token)
                    for f in inner:
                        start, end = to_token.span(f.start, f.end)
                        yield f._replace(start=offset + start, end=offset + end)
            return
        for run in views.base64_runs(text, ends) if sign == BASE64 else views.hex_runs(text, ends):
            for f in self._find(run.text, depth):
                start, end = run.span(f.start, f.end)
                yield f._replace(start=start, end=end)


def _matches(rule: Rule, text: bytes, ends: list[int]) -> Iterator[Any]:
    """The rule's matches: around the places the gate named, or anywhere if it named none."""
    pattern, window = rule.pattern, rule.spec.window
    if not ends or not window or len(text) <= SHORT:
        yield from pattern.finditer(text)
        return
    done = 0
    for end in sorted(ends):
        if end <= done:
            continue
        start = max(end - WINDOW_BEFORE, done)
        for m in pattern.finditer(text, start, end + window):
            if m.end() == end + window:
                m = pattern.search(text, m.start())
            yield m
            done = m.end()
        done = max(done, end)


NAMED_KINDS = ("password", "secret", "api_key", "private_key", "token", "authorization", "cookie")


def judged(key: str, value: str, judge: Judge) -> Name | None:
    """The name's kind if the value under it is to be hidden."""
    name = name_of(key)
    return name if name is not None and plausible(name, key, value, judge) else None


def _blank(m: re.Match[bytes]) -> bytes:
    return bytes(m.end() - m.start())


# The next field of a connection string or query: what stands there is no part of the value.
_NEXT_FIELD = re.compile(rb"[;&][A-Za-z][A-Za-z0-9 _.\-]{0,40}=")
_MARKER = re.compile(rb"-----[^-\n]+-----")
_LINE_NUMBER = re.compile(rb"^[^A-Za-z0-9+/=]*[0-9]{1,6}(?:[:\t|]|\xe2\x86\x92)")
_MATERIAL = re.compile(rb"[A-Za-z0-9+/=]+")


def block(secret: bytes) -> bytes:
    """Key material without its line layout (numbers, quotes, diff marks), so that one key has one fingerprint
    however it was printed."""
    text = _MARKER.sub(b"\n", secret.replace(b"\\r", b"").replace(b"\\n", b"\n").replace(b"\\", b""))
    lines = [b"".join(_MATERIAL.findall(_LINE_NUMBER.sub(b"", line))) for line in text.splitlines()]
    lines = [line for line in lines if line]
    if len(lines) > 1 and all(line.startswith(b"+") for line in lines):
        lines = [line[1:] for line in lines]
    return b"".join(lines)


def merge(found: list[Found]) -> list[Found]:
    """Overlapping findings become one that covers all, named after the highest-ranked (then longest)."""
    if len(found) < 2:
        return found
    found.sort(key=lambda f: (f.start, -f.end))
    merged = [found[0]]
    for f in found[1:]:
        last = merged[-1]
        if f.start < last.end:
            best = max(last, f, key=lambda x: (x.rank, len(x.secret)))
            merged[-1] = best._replace(start=last.start, end=max(last.end, f.end))
        else:
            merged.append(f)
    return merged
