"""The one object adapters and the proxy get: what is kept of a payload, redacted, bounded and hashed under one
tenant's key."""

from __future__ import annotations

import binascii
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import orjson

from schemas.canonical import canonical
from schemas.content import Content
from schemas.facts import MAX_ITEMS, Facts
from services.capture.facts import extract
from services.capture.facts.collect import Collector
from services.capture.redaction import Examined, Finding, Redactor, RulePack, placeholder, truncate
from services.capture.redaction.redactor import to_bytes

Direction = Literal["input", "output"]

MAX_HASHED_BYTES = 1 << 20
"""Above this a value is hashed as it came, kept without summary and searched for secrets window by window."""
MAX_FULL_BYTES = 256 * 1024
"""Bound of what the full and sampled levels keep, so that two of them fit a record."""

_SLASHES = re.compile("/{2,}")
_MIN_MASKED = 4
_NATIVE_VALUE = 1024
_NATIVE_KEYS = 64
_MAX_IDENT = 256


class CaptureLevel(StrEnum):
    """What is kept of a value besides its size and hash, from nothing to everything."""

    OFF = "off"
    SUMMARY = "summary"
    SAMPLED = "sampled"
    FULL_REDACTED = "full_redacted"
    FULL_RAW = "full_raw"


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """`hash_key`: at least 16 bytes, one a tenant; `key_id` names it in hashes. Bounds in bytes of UTF-8, after
    redaction.

    `sample_rate`: share of values kept at level `sampled`, chosen by their hash. `full_raw` keeps secrets: whoever
    sets it has checked that it is allowed here.
    """

    hash_key: bytes
    key_id: str
    level_input: CaptureLevel = CaptureLevel.SUMMARY
    level_output: CaptureLevel = CaptureLevel.SUMMARY
    max_bytes_input: int = 4096
    max_bytes_output: int = 4096
    hash_input: bool = True
    hash_output: bool = True
    sample_rate: float = 0.1


class Capture:
    """Turns payload values into what events may hold. Pure; shareable between threads.

    Values are not to be changed between two calls that get the same object: the last ones are remembered by identity,
    so that content and facts of one value cost one search.
    """

    def __init__(self, settings: CaptureSettings, rules: RulePack | None = None) -> None:
        self.settings = settings
        self.redactor = Redactor(settings.hash_key, rules)
        self._last: tuple[tuple[Any, Examined], ...] = ()
        self.ident: Callable[[str], str] = lru_cache(maxsize=8192)(self._ident)

    # Hashes

    def hash(self, value: Any) -> str:
        """`hmac-sha256:<key id>:<hex>` over the canonical JSON of a value; over its bytes, marked `raw:`, above 1
        MiB."""
        return self._serialised(value)[1]

    def raw_hash(self, body: bytes) -> str:
        """`hmac-sha256:<key id>:raw:<hex>` over bytes as they came."""
        return f"hmac-sha256:{self.settings.key_id}:raw:{self._hmac(body)}"

    def _hmac(self, body: bytes) -> str:
        return hmac.digest(self.settings.hash_key, body, "sha256").hex()

    def _serialised(self, value: Any) -> tuple[bytes, str]:
        body = canonical(value)
        if len(body) <= MAX_HASHED_BYTES:
            return body, f"hmac-sha256:{self.settings.key_id}:{self._hmac(body)}"
        body = _as_it_came(value, body)
        return body, self.raw_hash(body)

    # What events hold

    def content(self, value: Any, *, direction: Direction) -> Content:
        """Size, hash, redacted summary and findings by kind, by the capture level of the direction."""
        s = self.settings
        given = direction == "input"
        level = s.level_input if given else s.level_output
        body, digest = self._serialised(value)
        size = len(to_bytes(value)) if isinstance(value, str) else len(body)
        shown = digest if (s.hash_input if given else s.hash_output) else None
        if level is CaptureLevel.SAMPLED:
            level = CaptureLevel.FULL_REDACTED if self._sampled(digest) else CaptureLevel.OFF
        if level is CaptureLevel.OFF:
            return Content(size_bytes=size, hash=shown)
        if level is CaptureLevel.FULL_RAW:
            return Content(size_bytes=size, hash=shown, summary=truncate(_shown(value), MAX_FULL_BYTES))
        if len(body) > MAX_HASHED_BYTES:
            found = self._examined_large(value, body).findings
            return Content(size_bytes=size, hash=shown, redaction_applied=bool(found), redactions=_counts(found))
        done = self._examined(value)
        found = done.findings
        bound = s.max_bytes_input if given else s.max_bytes_output
        limit = MAX_FULL_BYTES if level is CaptureLevel.FULL_REDACTED else bound
        return Content(
            size_bytes=size,
            hash=shown,
            summary=truncate(_shown(done.value), limit),
            redaction_applied=bool(found),
            redactions=_counts(found),
        )

    def text(self, text: str, max_bytes: int = 1024) -> str:
        """Free text (messages, reasons, names of people's making): redacted, then cut."""
        return truncate(self.redactor.text(text).text, max_bytes)

    def _ident(self, text: str) -> str:
        """An id or name from outside, redacted and cut to 256 bytes. Results are cached."""
        return truncate(self.redactor.text(text).text, _MAX_IDENT)

    def native(self, payload: Any, max_bytes: int = 4096) -> dict[str, Any]:
        """Fields that have no place of their own: redacted, at most 64 of them, long or deep ones as {size_bytes,
        hash}."""
        if not isinstance(payload, dict):
            payload = {"value": payload}
        kept: dict[str, Any] = {}
        left = max_bytes
        for n, (key, value) in enumerate(payload.items()):
            if n == _NATIVE_KEYS or left <= 0:
                kept["…"] = f"+{len(payload) - n} fields"
                break
            name = truncate(str(key), 96)
            size = _size(value)
            if size is None or size > min(_NATIVE_VALUE, left):
                body, digest = self._serialised(value)
                value, size = {"size_bytes": len(body), "hash": digest}, 128
            kept[name] = value
            left -= size + len(name)
        redacted, _ = self.redactor.value(kept)
        return dict(redacted)

    # Facts

    def facts(self, tool_source: str, tool_name: str, value: Any, cwd: str | None) -> Facts:
        """What a call does, from its whole input. Fingerprints cover secrets found and words that could be one
        (value flow)."""
        # A secret in the folder's own name is no secret of the value, so nothing below would look for it.
        to = Collector(self.ident(cwd) if cwd else cwd)
        extract(to, tool_source, tool_name, value)
        done = self._examined(value)
        found = done.findings
        fingerprints = list(dict.fromkeys(f.fingerprint for f in found))
        for token in _tokens(value):
            if len(fingerprints) >= MAX_ITEMS:
                break
            print_ = self.redactor.fingerprint(token)
            if print_ not in fingerprints:
                fingerprints.append(print_)
        return to.facts(
            tuple(dict.fromkeys(f.kind for f in found)), tuple(fingerprints), self._mask(to.strings(), done.secrets)
        )

    def output_facts(self, value: Any) -> Facts:
        """Kinds and fingerprints of the secrets in a result."""
        found = self._examined(value).findings
        kinds = tuple(dict.fromkeys(f.kind for f in found))
        prints = tuple(dict.fromkeys(f.fingerprint for f in found))
        return Facts(
            secret_kinds=kinds[:MAX_ITEMS],
            fingerprints=prints[:MAX_ITEMS],
            truncated=len(kinds) > MAX_ITEMS or len(prints) > MAX_ITEMS,
        )

    def _mask(self, texts: list[str], secrets: dict[bytes, Finding]) -> dict[str, str]:
        """Of these texts, those that hold a secret (found in the value, or visible only now that quotes are gone),
        and what to show."""
        mask: dict[str, str] = {}
        if secrets:
            for text in texts:
                shown = text
                for secret, finding in secrets.items():
                    word = secret.decode("utf-8", "replace")
                    # Hosts and command names are shown in lower case, and a path's double slashes as one.
                    for form in {word, _SLASHES.sub("/", word)}:
                        if len(form) >= _MIN_MASKED and form.lower() in shown.lower():
                            shown = re.sub(re.escape(form), placeholder(*finding), shown, flags=re.IGNORECASE)
                if shown != text:
                    mask[text] = shown
        if texts and self.redactor.scan(to_bytes("\x00".join(texts))):
            for text in texts:
                before = mask.get(text, text)
                shown = self.redactor.text(before).text
                if shown != before:
                    mask[text] = shown
        return mask

    # The last safety net

    def scrub(self, event: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """A finished event with any secret left in it replaced, and how many there were. The event itself when
        there was none.

        Ids, hashes, times and placeholders stay as they are; so does a summary that was asked for raw.
        """
        try:
            serialised = orjson.dumps(event)
        except (TypeError, ValueError):
            serialised = None
        if serialised is not None and not self.redactor.may_hold(serialised):
            return event, 0
        raw = {
            side: event[side]["summary"]
            for side, level in (("input", self.settings.level_input), ("output", self.settings.level_output))
            if level is CaptureLevel.FULL_RAW
            and isinstance(event.get(side), dict)
            and isinstance(event[side].get("summary"), str)
        }
        clean, found = self.redactor.texts(event, _own)
        if not found:
            return event, 0
        for side, summary in raw.items():
            clean[side]["summary"] = summary
        return clean, len(found)

    # Search

    def _examined(self, value: Any) -> Examined:
        if _size(value, MAX_HASHED_BYTES) is None:
            return self._examined_large(value, None)
        return self._remembered(value, lambda: self.redactor.examine(value))

    def _examined_large(self, value: Any, body: bytes | None) -> Examined:
        return self._remembered(value, lambda: self.redactor.examine_large(_as_it_came(value, body)))

    def _remembered(self, value: Any, examine: Callable[[], Examined]) -> Examined:
        for known, done in self._last:
            if known is value:
                return done
        done = examine()
        self._last = ((value, done), *self._last[:1])
        return done

    def _sampled(self, digest: str) -> bool:
        return int(digest[-8:], 16) < self.settings.sample_rate * 0x1_0000_0000


_OWN = re.compile(
    r"hmac-sha256:[\w.\-]{1,64}:(?:raw:)?[0-9a-f]{64}|[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+\-]\d\d:\d\d)"
)


def _own(text: str) -> bool:
    """Whether a text has the form of an id, hash or time this product makes, which a number can only resemble by
    chance."""
    return _OWN.fullmatch(text) is not None


def _counts(found: Iterable[Finding]) -> dict[str, int]:
    return dict(Counter(f.kind for f in found))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return to_bytes(value).decode()
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):
        return canonical(value).decode()


def _as_it_came(value: Any, fallback: bytes | None) -> bytes:
    """The JSON of a large value in the order it came; a text is its own bytes."""
    if isinstance(value, str):
        return to_bytes(value)
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):
        return canonical(value) if fallback is None else fallback


def _size(value: Any, limit: int = 1 << 62) -> int | None:
    """Bytes of a value as JSON; None if it is over the limit or cannot be written (nested too deeply)."""
    if isinstance(value, str):
        return len(value) if len(value) * 4 <= limit or len(to_bytes(value)) <= limit else None
    try:
        size = len(orjson.dumps(value))
    except (TypeError, ValueError):
        return None
    return size if size <= limit else None


# Words of an input that could be a secret which an earlier output held under a name that is gone by now.
_WORD = re.compile(rb"[^\s\x00\"'`]{8,256}")
_PART = re.compile(rb"[^=&?,;:@/<>(){}\[\]|\\]{8,128}")
_LETTER, _DIGIT = re.compile(rb"[A-Za-z]"), re.compile(rb"[0-9]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-]{16,256}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){8,128}")
_MAX_TOKEN_TEXT = 16 * 1024


def _tokens(value: Any) -> Iterable[bytes]:
    text = to_bytes(value) if isinstance(value, str) else b"\x00".join(_strings(value))
    for m in _WORD.finditer(text[:_MAX_TOKEN_TEXT]):
        word = m.group()
        parts = [word, *(p for p in _PART.findall(word) if p != word)]
        for part in (*parts, *(d for p in parts for d in _decoded(p))):
            if part[:1] not in b"-/~." and _DIGIT.search(part) and _LETTER.search(part):
                yield part


def _decoded(word: bytes) -> Iterable[bytes]:
    found: list[bytes] = []
    if b"%" in word:
        found.append(unquote_to_bytes(word))
    for pattern, decode in ((_BASE64, _from_base64), (_HEX, binascii.unhexlify)):
        for run in pattern.findall(word):
            text = decode(run)
            if _printable(text):
                found.append(text.strip())
    return [part for text in found for part in (text, *_WORD.findall(text), *_PART.findall(text))]


def _from_base64(run: bytes) -> bytes:
    body = run.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    body = body[: len(body) - 1] if len(body) % 4 == 1 else body
    return binascii.a2b_base64(body + b"=" * (-len(body) % 4))


def _printable(text: bytes) -> bool:
    return (
        text.isascii()
        and len(text) >= 8
        and text.decode("ascii").replace("\n", " ").replace("\t", " ").strip().isprintable()
    )


def _strings(value: Any) -> list[bytes]:
    """Texts of a JSON value, in no particular order, up to what `_tokens` looks at."""
    found: list[bytes] = []
    left = _MAX_TOKEN_TEXT
    stack = [value]
    while stack and left > 0:
        node = stack.pop()
        if isinstance(node, str):
            found.append(to_bytes(node))
            left -= len(node)
        elif isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
    return found
