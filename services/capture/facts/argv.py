"""Helpers over argument lists: sub-commands, flags without values, what a wrapper runs, what a pipe brings."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator

from services.capture.facts.shell import Simple, Word
from services.capture.facts.tables import FETCHERS, SUBCOMMANDS, WRAPPERS

_MAX_FLAGS = 16
_SHORT = re.compile(r"-[A-Za-z0-9]{1,5}\Z")
_LONG = re.compile(r"--[A-Za-z][A-Za-z0-9\-]{0,60}")
# Tools whose options are words behind one dash.
_WORD_OPTIONS = frozenset(
    ("find", "openssl", "java", "javac", "terraform", "go", "ffmpeg", "convert", "ip", "xclip", "security", "ld", "gcc")
)
_HEREDOC_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|0([0-7]{1,3})|([ntr\\]))")


def wrapped_at(name: str, words: list[Word]) -> int:
    """Where in `words` the command begins that a wrapper runs; `len(words)` if there is none."""
    valued, before = WRAPPERS[name]
    i, n = 1, len(words)
    while i < n:
        text = words[i].text
        if text == "--":
            return i + 1
        if text.startswith("-") and len(text) > 1:
            i += 2 if text in valued else 1
        elif name in ("env", "sudo", "doas") and "=" in text and not text.startswith("="):
            i += 1
        elif before:
            before -= 1
            i += 1
        else:
            break
    return min(i, n)


def unwrapped(command: Simple) -> list[Word]:
    """The words of what a command in the end runs, behind sudo, env and the like."""
    words = command.argv
    for _ in range(8):
        if not words:
            break
        name = posixpath.basename(words[0].text)
        if name not in WRAPPERS:
            break
        words = words[wrapped_at(name, words) :]
    return words


def command_name(command: Simple) -> str:
    words = unwrapped(command)
    return posixpath.basename(words[0].text) if words else ""


def moved(cwd: str | None, target: str) -> str | None:
    if target == "-" or "$" in target:
        return None
    if target.startswith(("/", "~")) or cwd:
        return posixpath.normpath(target if target.startswith(("/", "~")) else f"{cwd}/{target}")
    return None


def has_option(args: list[str], letters: str, long: str) -> bool:
    """Whether an option is set, in any cluster, short or long."""
    for text in args:
        if text == "--":
            return False
        if text == long or (text.startswith("-") and not text.startswith("--") and any(c in text[1:] for c in letters)):
            return True
    return False


def subcommand(name: str, args: list[str]) -> str | None:
    known = SUBCOMMANDS.get(name)
    if known is None:
        return None
    valued, count = known
    found: list[str] = []
    skip = False
    for text in args:
        if skip:
            skip = False
        elif text.startswith("-"):
            skip = text in valued
        else:
            found.append(text[:64])
            if len(found) == count:
                break
    return " ".join(found) if found else None


def flags(name: str, args: list[str]) -> list[str]:
    """Options without their values, so that none carries a secret: `-pSECRET` → `-p`, `--token=x` → `--token`."""
    found: list[str] = []
    for text in args:
        if len(found) >= _MAX_FLAGS or text == "--":
            break
        if len(text) < 2 or text[0] != "-":
            continue
        if text[1] == "-":
            m = _LONG.match(text)
            if m:
                found.append(m.group())
        elif name in _WORD_OPTIONS:
            found.append(text.partition("=")[0][:24])
        elif _SHORT.match(text) and name not in ("mysql", "mysqldump", "mariadb", "sshpass", "mysqladmin"):
            found.append(text)
        else:
            found.append(text[:2])
    return found


def package(text: str) -> str:
    """The name without version, extras or credentials: `requests[socks]==2` → requests, `@s/x@1` → @s/x."""
    if "://" in text:
        return re.sub(r"://[^/@]*@", "://", text)
    if text.startswith("@"):
        return "@" + text[1:].partition("@")[0]
    return re.split(r"[=<>!~@\[;: ]", text, maxsplit=1)[0] or text


def chain(command: Simple) -> Iterator[Simple]:
    """What feeds a command, nearest first."""
    for _ in range(32):
        if command.stdin is None:
            return
        command = command.stdin
        yield command


def fetches(word: Word) -> bool:
    """Whether a word is made from what a network command prints."""
    pending = list(word.inner)
    for _ in range(256):
        if not pending:
            return False
        command = pending.pop()
        if command_name(command) in FETCHERS:
            return True
        for inner in command.argv:
            pending += inner.inner
    return False


def fetches_any(words: list[Word]) -> bool:
    return any(fetches(w) for w in words)


def stdin_text(command: Simple) -> str | None:
    """The literal text on a command's standard input, through echo, printf, cat and decoders; None if it is not
    known."""
    if command.text is not None:
        return command.text
    decode: list[str] = []
    for upstream in chain(command):
        words = unwrapped(upstream)
        name = posixpath.basename(words[0].text) if words else ""
        args = [w.text for w in words[1:]]
        if (name in ("base64", "base32") and any(a in ("-d", "-D", "--decode", "-di") for a in args)) or (
            name == "xxd" and any("r" in a for a in args if a.startswith("-"))
        ):
            decode.append(name)
            if upstream.text is None:
                continue
            text = upstream.text
        elif name in ("cat", "tee") and upstream.text is not None:
            text = upstream.text
        elif name in ("cat", "tee"):
            continue
        elif name in ("echo", "printf"):
            text = " ".join(a for a in args if a not in ("-e", "-n", "-en", "-ne", "--"))
            text = (
                _HEREDOC_ESCAPE.sub(_echo_escape, text)
                if name == "printf" or any("e" in a for a in args[:2] if a.startswith("-"))
                else text
            )
        else:
            return None
        for how in reversed(decode):
            decoded = _decoded(how, text)
            if decoded is None:
                return None
            text = decoded
        return text
    return None


def _decoded(how: str, text: str) -> str | None:
    try:
        if how == "xxd":
            return binascii.unhexlify("".join(text.split())).decode("utf-8", "replace")
        raw = "".join(text.split())
        return (base64.b64decode(raw + "=" * (-len(raw) % 4)) if how == "base64" else base64.b32decode(raw)).decode(
            "utf-8", "replace"
        )
    except (ValueError, binascii.Error):
        return None


def _echo_escape(m: re.Match[str]) -> str:
    if m.group(1):
        return chr(int(m.group(1), 16))
    if m.group(2):
        return chr(int(m.group(2), 8) & 0xFF)
    return {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}[m.group(3)]
