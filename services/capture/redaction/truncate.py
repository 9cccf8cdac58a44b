"""Cuts a redacted text to a byte limit without cutting a placeholder, a character or, where it can, a word."""

from __future__ import annotations

import re

_PLACEHOLDER = re.compile(rb"\xe2\x80\xb9redacted:[a-z0-9_]{1,32}:[0-9a-f]{16}\xe2\x80\xba")
_LONGEST = 96
_BORDER = re.compile(rb"""[\s,;:&|()\[\]{}<>"'`=]""")
_LOOK_BACK = 64


def truncate(text: str, max_bytes: int) -> str:
    """`text` if its UTF-8 form fits, else its beginning and `…[+N bytes]`, together at most `max_bytes` bytes (at
    least the mark)."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return text
    mark = f"…[+{len(raw)} bytes]"
    cut = max(max_bytes - len(mark.encode()), 0)
    near = max(cut - _LOOK_BACK, 0)
    for m in _BORDER.finditer(raw, near, cut):
        near = m.end()
    if near > max(cut - _LOOK_BACK, 0):
        cut = near
    for m in _PLACEHOLDER.finditer(raw, max(cut - _LONGEST, 0)):
        if m.start() >= cut:
            break
        if m.end() > cut:
            cut = m.start()
    while cut and raw[cut] & 0xC0 == 0x80:
        cut -= 1
    return raw[:cut].decode("utf-8", "replace") + f"…[+{len(raw) - cut} bytes]"
