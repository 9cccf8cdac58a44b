"""Shell lines of plain words and whole quoted strings, joined by pipes and lists: most of what agents run, read in a
fifth of the parser's time. Anything else is for the parser, and what both read they read alike."""

from __future__ import annotations

import re

from services.capture.facts.shell import Redirect, Simple, Word
from services.capture.words import words

_MAX = 1024
# A word, a string in single or double quotes, what joins two commands, or the usual `2>&1` and `2>/dev/null`.
_TOKEN = (
    r"(?:(G(?!=|-[ ;])[A-Za-z0-9_./:@%+,=~*\-]++|\{\})|'(G[ -&(-~]*+)'|\"(G[ #%-\[\]-_a-~]*+)\"|(G&&|\|\|?|;)|2>(G&1|/dev/null))"
    r"(?=[ ;]|\Z)"
)
_TOKENS = re.compile(_TOKEN.replace("(G", "("))
# Without groups: Python 3.11 loses their places in a possessive repeat.
_LINE = re.compile(rf"(?: *+{_TOKEN.replace('(G', '(?:')})++ *+\Z")
_FIRST = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+\-]*+\Z")
# Words that are more to a shell than the name of a command.
_RESERVED = frozenset(
    words(
        "if then else elif fi for while until do done case esac select function time in coproc declare typeset "
        "export readonly local unset unsetenv let test"
    )
)


def plain(text: str) -> list[Simple] | None:
    """The simple commands of a plain line in order, None if it is not one."""
    if len(text) > _MAX or _LINE.match(text) is None:
        return None
    commands: list[Simple] = []
    command: Simple | None = None
    feed: Simple | None = None
    for word, single, double, joint, to in _TOKENS.findall(text):
        if word:
            if command is None:
                if _FIRST.match(word) is None or word in _RESERVED:
                    return None
                command = Simple([Word(word)], stdin=feed)
                commands.append(command)
            else:
                command.argv.append(Word(word))
        elif command is None:
            return None
        elif joint:
            feed = command if joint == "|" else None
            command = None
        elif to:
            command.redirects.append(Redirect(">&" if to == "&1" else ">", Word("1" if to == "&1" else to)))
        else:
            command.argv.append(Word(single or double))
    return commands if command is not None else None
