"""Foreign text on a terminal: what could move the cursor, set a title or reverse the reading order is shown, not obeyed."""

from __future__ import annotations

import re

# C0 and C1 controls, and the bidirectional overrides and isolates of Unicode (UAX #9).
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: object) -> str:
    """The text with white space folded to blanks and other control characters as `\\x1b`."""
    flat = " ".join(str(text).split())
    return _UNSAFE.sub(lambda match: f"\\x{ord(match.group()):02x}", flat)


def cut(text: object, width: int) -> str:
    """`safe`, and at most `width` characters."""
    flat = safe("" if text is None else text)
    return flat if len(flat) <= width else flat[: width - 1] + "…"
