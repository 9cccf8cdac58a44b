"""A unified diff for people that shows what a wrap changes, and no secret.

Of the values only commands, args and the origins of URLs are shown, and words of args that look like a secret are not:
the lines around may hold keys and tokens, in comments too.
"""

from __future__ import annotations

import difflib
import json
import re
import secrets
from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlsplit

from services.capture.redaction import Redactor
from services.mcp_proxy.wrap.document import HIDDEN, Document, Edit, Entry, Span, apply, line_of

_CONTEXT = 2
_KNOWN = frozenset({"stdio", "http", "sse", "streamable-http"})
_ROUTE = re.compile(r"/mcp/[^/?#]+")


def unified(before: Document, after: Document, name: str) -> Iterator[str]:
    """Lines without line breaks."""
    redactor = Redactor(secrets.token_bytes(16))
    old, new = (_shown(document, redactor).splitlines(keepends=True) for document in (before, after))
    yield from (f"--- {name}", f"+++ {name}")
    for (start, stop), (start_new, stop_new) in _regions(before, after):
        hunks = difflib.unified_diff(old[start:stop], new[start_new:stop_new], n=_CONTEXT)
        for line in islice(hunks, 2, None):
            if line.startswith("@@"):
                line = _moved(line, start, start_new)
            yield line.rstrip("\r\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"


def _regions(before: Document, after: Document) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Line ranges (from 0) in both, around servers that differ. difflib takes minutes for a whole file of 20 MiB."""
    found: list[list[int]] = []
    pairs = zip(before.entries, after.entries, strict=True)
    for entry, other in sorted(pairs, key=lambda pair: pair[0].line):
        if entry.data == other.data:
            continue
        (start, stop), (start_new, stop_new) = _lines(before, entry), _lines(after, other)
        if found and start - _CONTEXT < found[-1][1]:
            found[-1][1::2] = [max(stop, found[-1][1]), max(stop_new, found[-1][3])]
        else:
            found.append([start, stop, start_new, stop_new])
    for start, stop, start_new, stop_new in found:
        yield (start, stop), (start_new, stop_new)


def _lines(document: Document, entry: Entry) -> tuple[int, int]:
    values = entry.fields.values()
    first, last = min(value.pair for value in values), max(value.span.end for value in values)
    start = line_of(document.text, first) - 1 - _CONTEXT
    return max(start, 0), line_of(document.text, last) + _CONTEXT


def _moved(header: str, old: int, new: int) -> str:
    """The header of a hunk of a part that begins after this many lines."""
    starts = iter((old, new))
    return re.sub(r"(?<=[-+])\d+", lambda number: str(int(number[0]) + next(starts)), header)


def _shown(document: Document, redactor: Redactor) -> str:
    shown = {span: text for entry in document.entries for span, text in _of(document, entry, redactor)}
    edits = [Edit(*span, shown.get(span) or _hidden(document.text[slice(*span)])) for span in document.values()]
    return apply(document.text, edits)


def _of(document: Document, entry: Entry, redactor: Redactor) -> Iterator[tuple[Span, str]]:
    command, args, url = (entry.fields.get(key) for key in ("command", "args", "url"))
    places = [*([command.span] if command else ()), *(args.items if args else ())]
    words = [*([entry.data["command"]] if command else ()), *(entry.data["args"] if args and args.items else ())]
    # Together, as one command line: `--token` tells what the next word is.
    for span, word, seen in zip(places, words, redactor.value(words)[0], strict=True):
        if isinstance(word, str):
            yield span, document.text[slice(*span)] if word == seen else document.quote(HIDDEN)
    if url and isinstance(entry.data["url"], str):
        yield url.span, document.quote(_without_key(entry.data["url"]))


def _without_key(url: str) -> str:
    """Scheme, host and the proxy's route of a URL; the rest may hold a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    route = _ROUTE.match(parts.path)
    front = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{route[0] if route else ''}"
    return front if front == url else f"{front}{'' if front.endswith('/') else '/'}{HIDDEN}"


def _hidden(token: str) -> str:
    """As many lines as it has, and nothing of it but what kind it is."""
    if token.startswith(("//", "/*")):
        short = f"{token[:2]} {HIDDEN}{' */' if token[1] == '*' else ''}"
    elif token[0] == "#":
        short = f"# {HIDDEN}"
    elif token[0] in "\"'":
        short = token if _plain(token) in _KNOWN else f'"{HIDDEN}"'
    else:
        short = HIDDEN
    return short + "\n" * token.count("\n")


def _plain(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return ""
