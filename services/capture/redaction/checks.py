"""Checks a pattern cannot express: checksums, numbering plans, entropy. Each turns look-alikes into certainty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from publicsuffixlist import PublicSuffixList


def entropy(value: bytes) -> float:
    """Shannon entropy in bits per byte."""
    n = len(value)
    if n == 0:
        return 0.0
    return -sum(c / n * math.log2(c / n) for c in Counter(value).values())


def _digits(value: bytes) -> list[int]:
    return [b - 48 for b in value if 48 <= b <= 57]


def luhn(value: bytes) -> bool:
    """ISO/IEC 7812-1 annex B, over the digits of `value`."""
    total = 0
    for i, d in enumerate(reversed(_digits(value))):
        if i % 2:
            d = d * 2 - 9 if d > 4 else d * 2
        total += d
    return total % 10 == 0


def card(value: bytes) -> bool:
    """A payment card number: 14 to 19 digits that pass Luhn and are not one digit repeated."""
    digits = _digits(value)
    return 14 <= len(digits) <= 19 and len(set(digits)) > 1 and luhn(value)


_GB_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def gb11643(value: bytes) -> bool:
    """Citizen identification number, GB 11643-1999 (ISO 7064 MOD 11-2 over 17 digits)."""
    text = value.decode("ascii", "replace").upper()
    if len(text) != 18 or not text[:17].isdecimal():
        return False
    return text[17] == "10X98765432"[sum(int(c) * w for c, w in zip(text[:17], _GB_WEIGHTS, strict=True)) % 11]


def iban(value: bytes) -> bool:
    """ISO 13616 account number (ISO 7064 MOD 97-10)."""
    text = value.decode("ascii", "replace").replace(" ", "")
    if not 15 <= len(text) <= 34:
        return False
    return int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1


def phone(value: bytes) -> bool:
    """E.164 length with more than two distinct digits."""
    digits = _digits(value)
    return 9 <= len(digits) <= 15 and len(set(digits)) > 2


@lru_cache(maxsize=1)
def suffixes() -> PublicSuffixList:
    """The Public Suffix List as packaged with publicsuffixlist, unknown top-level domains refused; loaded on first
    use."""
    return PublicSuffixList(accept_unknown=False)


@lru_cache(maxsize=4096)
def _top_level_exists(label: str) -> bool:
    return suffixes().publicsuffix(label) is not None


def email(value: bytes) -> bool:
    """The domain ends in a top-level domain that exists, so that `getty@tty1.service` is no address."""
    return _top_level_exists(value.rsplit(b".", 1)[-1].decode("ascii", "replace").lower())


CHECKS: dict[str, Callable[[bytes], bool]] = {
    "luhn": luhn,
    "card": card,
    "gb11643": gb11643,
    "iban": iban,
    "phone": phone,
    "email": email,
}
