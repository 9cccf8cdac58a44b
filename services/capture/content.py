"""The one object adapters and the proxy get: what is kept of a payload, redacted, bounded and hashed under one
tenant's key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import orjson

from schemas.canonical import canonical
from schemas.content import Content
from schemas.facts import MAX_ITEMS, Facts
from services.capture.facts import extract
from services.capture.facts.collect import Collector
from services.capture.keyed import Keyed
from services.capture.redaction import Examined, Finding, Redactor, RulePack, placeholder, truncate
from services.capture.redaction.redactor import to_bytes
from services.capture.tokens import tokens

Direction = Literal["input", "output"]

MAX_HASHED_BYTES = 1 << 20
"""Above this a value is hashed as it came, kept without summary and searched for secrets window by window."""
MAX_FULL_BYTES = 256 * 1024
"""Bound of what the full and sampled levels keep, so that two of them fit a record."""

_SLASHES = re.compile("/{2,}")
_MIN_MASKED = 4
# From this length on the texts of facts are cut; how much of a secret is looked for at such an end.
_CUT, _PART = 128, 8
_NATIVE_VALUE = 1024
_NATIVE_KEYS = 64
# So many short texts are mostly the same ones of a session again.
_FEW = 8
_MAX_IDENT = 256
# What is longer is not kept for the next delivery of the same value.
_RECENT_BYTES = 64 * 1024
_RECENT_SUMMARY = 8192
_RECENT_EVENT = 2048


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
    so that content and facts of one value cost one search. What was made of the last few hundred values is remembered
    by a hash of the value, so that the input that comes again with the end of a call costs a look-up.
    """

    def __init__(self, settings: CaptureSettings, rules: RulePack | None = None) -> None:
        self.settings = settings
        self.redactor = Redactor(settings.hash_key, rules)
        self._keyed = Keyed(settings.hash_key)
        self._last: tuple[_Reading, ...] = ()
        self._recent = _Recent(256)
        # Names, flags and paths known to hold no secret.
        self._clean = _Recent(4096)
        # Events, as JSON, that the last check found nothing in.
        self._passed = _Recent(256)
        self.ident: Callable[[str], str] = lru_cache(maxsize=8192)(self._ident)
        self._few = lru_cache(maxsize=1024)(self._native)

    # Hashes

    def hash(self, value: Any) -> str:
        """`hmac-sha256:<key id>:<hex>` over the canonical JSON of a value; over its bytes, marked `raw:`, above 1
        MiB."""
        return self._serialised(value)[1]

    def raw_hash(self, body: bytes) -> str:
        """`hmac-sha256:<key id>:raw:<hex>` over bytes as they came."""
        return f"hmac-sha256:{self.settings.key_id}:raw:{self._keyed.hex(body)}"

    def _serialised(self, value: Any) -> tuple[bytes, str]:
        body = canonical(value)
        if len(body) <= MAX_HASHED_BYTES:
            return body, f"hmac-sha256:{self.settings.key_id}:{self._keyed.hex(body)}"
        body = _as_it_came(value, body)
        return body, self.raw_hash(body)

    # What events hold

    def content(self, value: Any, *, direction: Direction) -> Content:
        """Size, hash, redacted summary and findings by kind, by the capture level of the direction."""
        reading = self._reading(value)
        key = (direction, reading.key)
        known: Content | None = self._recent.get(key)
        if known is None:
            known = self._content(value, direction)
            if reading.key is not None and len(known.summary or "") <= _RECENT_SUMMARY:
                self._recent.put(key, known)
        return known

    def _content(self, value: Any, direction: Direction) -> Content:
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
        if len(payload) <= _FEW and all(isinstance(v, str) and len(v) <= _MAX_IDENT for v in payload.values()):
            return dict(self._few(max_bytes, tuple(payload.items())))
        return self._native(max_bytes, payload.items())

    def _native(self, max_bytes: int, payload: Collection[tuple[Any, Any]]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        left = max_bytes
        for n, (key, value) in enumerate(payload):
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
        reading = self._reading(value)
        key = (tool_source, tool_name, cwd, reading.key)
        known: Facts | None = self._recent.get(key)
        if known is None:
            known = self._facts(tool_source, tool_name, value, cwd)
            if reading.key is not None:
                self._recent.put(key, known)
        return known

    def _facts(self, tool_source: str, tool_name: str, value: Any, cwd: str | None) -> Facts:
        # A secret in the folder's own name is no secret of the value, so nothing below would look for it.
        to = Collector(self.ident(cwd) if cwd else cwd)
        extract(to, tool_source, tool_name, value)
        done = self._examined(value)
        found = done.findings
        fingerprints = list(dict.fromkeys(f.fingerprint for f in found))
        for token in dict.fromkeys(tokens(value)):
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
                        if len(text) >= _CUT:
                            shown = _without_part(shown, form, placeholder(*finding))
                if shown != text:
                    mask[text] = shown
        unknown = [text for text in texts if self._clean.get(text) is None]
        if not unknown:
            return mask
        if not self.redactor.scan(to_bytes("\x00".join(unknown))):
            for text in unknown:
                self._clean.put(text, True)
        else:
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
        if serialised is not None:
            if self._passed.get(serialised):
                return event, 0
            if not self.redactor.may_hold(serialised):
                if len(serialised) <= _RECENT_EVENT:
                    self._passed.put(serialised, True)
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

    def _reading(self, value: Any) -> _Reading:
        for reading in self._last:
            if reading.value is value:
                return reading
        reading = _Reading(value)
        self._last = (reading, *self._last[:1])
        return reading

    def _examined(self, value: Any) -> Examined:
        reading = self._reading(value)
        if reading.examined is None:
            examine = self.redactor.examine
            reading.examined = self._examined_large(value, None) if reading.large else examine(value)
        return reading.examined

    def _examined_large(self, value: Any, body: bytes | None) -> Examined:
        reading = self._reading(value)
        if reading.examined is None:
            reading.examined = self.redactor.examine_large(_as_it_came(value, body))
        return reading.examined

    def _sampled(self, digest: str) -> bool:
        return int(digest[-8:], 16) < self.settings.sample_rate * 0x1_0000_0000


class _Reading:
    """What is known of one value. `key`: a hash of its JSON in the order it came, None where that is long or cannot be
    written; `large`: whether it is searched window by window."""

    __slots__ = ("examined", "key", "large", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.examined: Examined | None = None
        body = _dumped(value)
        self.key = blake2b(body, digest_size=16).digest() if body and len(body) <= _RECENT_BYTES else None
        if isinstance(value, str):
            self.large = len(value) * 4 > MAX_HASHED_BYTES and len(to_bytes(value)) > MAX_HASHED_BYTES
        else:
            self.large = body is None or len(body) > MAX_HASHED_BYTES


class _Recent:
    """Results by key, those put last: `limit` to twice as many. Threads may share it: each step is one of a dict's
    own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: Any) -> Any:
        return self._young.get(key) or self._old.get(key)

    def put(self, key: Any, result: Any) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = result


_OWN = re.compile(
    r"hmac-sha256:[\w.\-]{1,64}:(?:raw:)?[0-9a-f]{64}|[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+\-]\d\d:\d\d)"
)


def _own(text: str) -> bool:
    """Whether a text has the form of an id, hash or time this product makes, which a number can only resemble by
    chance."""
    return _OWN.fullmatch(text) is not None


def _without_part(text: str, secret: str, shown: str) -> str:
    """A text that was cut at its start or end, without what is left there of a secret."""
    low, word = text.lower(), secret.lower()
    for size in range(min(len(word), len(low)), _PART - 1, -1):
        if low.endswith(word[:size]):
            return text[:-size] + shown
        if low.lstrip("…").startswith(word[-size:]):
            return shown + text.lstrip("…")[size:]
    return text


def _counts(found: tuple[Finding, ...]) -> dict[str, int]:
    return dict(Counter(f.kind for f in found)) if found else {}


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


def _size(value: Any) -> int | None:
    """Length of a text, bytes of anything else as JSON; None if it cannot be written."""
    written = value if isinstance(value, str) else _dumped(value)
    return None if written is None else len(written)


def _dumped(value: Any) -> bytes | None:
    """A value as JSON; None if it cannot be written (nested too deeply)."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):
        return None
