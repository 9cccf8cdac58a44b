"""Paths a patch touches: the `*** Begin Patch` form of apply_patch, and unified diffs."""

from __future__ import annotations

import re

from services.capture.facts.collect import Collector

_APPLY = re.compile(r"^\*\*\* (Add File|Update File|Delete File|Move to): (.{1,1000})$", re.MULTILINE)
_DIFF = re.compile(r"^(---|\+\+\+) ([^\t\r\n]{1,1000})", re.MULTILINE)
_LIMIT = 2000


def is_patch(text: str) -> bool:
    """Whether a text is a patch in a form this module reads."""
    head = text[:4096].lstrip()
    return head.startswith(("*** Begin Patch", "--- ", "diff --git ")) or "\n--- a/" in head


def read_patch(to: Collector, text: str) -> None:
    """Adds the paths a patch writes and deletes."""
    if "*** " in text:
        previous = ""
        for n, m in enumerate(_APPLY.finditer(text)):
            if n >= _LIMIT:
                to.truncated = True
                return
            what, path = m.group(1), m.group(2).strip()
            if what == "Move to":
                to.path(previous, "delete")
            to.path(path, "delete" if what == "Delete File" else "write")
            previous = path
    old = ""
    for n, m in enumerate(_DIFF.finditer(text)):
        if n >= _LIMIT:
            to.truncated = True
            return
        path = re.sub(r"^[ab]/", "", m.group(2).strip())
        if m.group(1) == "---":
            old = path
        elif path == "/dev/null":
            to.path(old, "delete")
        else:
            to.path(path, "write")
