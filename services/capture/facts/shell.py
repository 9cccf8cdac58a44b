"""Shell text to simple commands, by tree-sitter-bash: what would run, with what arguments, fed by what. Never
recursive, always bounded."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

# Parsing costs 0.3 ms a KiB. Past the cap both ends are read, since padding in front or behind is the usual way to
# hide an act.
MAX_PARSE_BYTES = 256 * 1024
_TAIL_BYTES = 64 * 1024
MAX_NODES = 60_000
MAX_SECONDS = 0.25
_SURELY_SHORT = 1024
_EXPAND_LIMIT = 4096


@dataclass(slots=True)
class Word:
    """An argument after quote removal. `inner`: commands whose output becomes (part of) it; `dynamic`: not all of
    it is known."""

    text: str
    dynamic: bool = False
    inner: list[Simple] | tuple[()] = ()


@dataclass(slots=True)
class Redirect:
    """`op` as written without its descriptor: < > >> >| &> <<<."""

    op: str
    target: Word


@dataclass(slots=True)
class Simple:
    """A simple command. `stdin` is what a pipe feeds it, `text` what a here-document or here-string does."""

    argv: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    stdin: Simple | None = None
    text: str | None = None
    background: bool = False


@dataclass(slots=True)
class Parsed:
    """Simple commands in the order they stand; `truncated` when not all of the text was looked at."""

    commands: list[Simple] = field(default_factory=list)
    truncated: bool = False


_LANGUAGE = Language(tree_sitter_bash.language())
_LOCAL = threading.local()
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_STRING = re.compile(r"\\([$`\"\\]|\n)")
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_ANSI_CHARS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_LEAVES = frozenset(
    ("word", "number", "string_content", "raw_string", "variable_name", "comment", "heredoc_start", "heredoc_end")
)


class _Slot:
    """The last command of a statement, for what a pipe, a redirection or `&` does to it."""

    __slots__ = ("last",)

    def __init__(self, last: Simple | None = None) -> None:
        self.last = last


@dataclass(slots=True)
class _Task:
    """A node to read: commands in it are fed by `feed.last`, become `out.last`, and are added to `into` if it
    belongs to a word."""

    node: Node
    feed: _Slot | None
    out: _Slot
    into: list[Simple] | None
    # Set for the parts of a redirected statement that are read after its body.
    redirect: bool = False


def parse(text: str, variables: dict[str, str]) -> Parsed:
    """The simple commands of a shell text. `variables`: values known so far; literal assignments in the text are
    added to it.

    Some texts (long pipes, many `)` or here-documents) cost the parser their length squared, so its time is bounded:
    what it does not finish is read in short pieces from both ends while time is left, and `truncated` says so.
    """
    raw = text.encode("utf-8", "replace").replace(b"\x00", b" ")
    result = Parsed()
    variables.setdefault("HOME", "~")
    parser = _parser()
    pieces = [raw]
    if len(raw) > MAX_PARSE_BYTES:
        result.truncated = True
        pieces = [raw[: MAX_PARSE_BYTES - _TAIL_BYTES], raw[-_TAIL_BYTES:]]
    for piece in pieces:
        tree = parser.parse(piece) if len(piece) <= _SURELY_SHORT else _within_time(parser, piece)
        if tree is not None:
            _Reader(piece, variables, result).read(tree.root_node)
            continue
        result.truncated = True
        stop = time.thread_time() + MAX_SECONDS
        for part in _from_both_ends(_parts(piece)):
            _Reader(part, variables, result).read(parser.parse(part).root_node)
            if time.thread_time() > stop:
                break
    return result


def _parser() -> Parser:
    try:
        return _LOCAL.parser  # type: ignore[no-any-return]
    except AttributeError:
        _LOCAL.parser = Parser(_LANGUAGE)
        return _LOCAL.parser  # type: ignore[no-any-return]


def _within_time(parser: Parser, raw: bytes) -> Tree | None:
    stop = time.thread_time() + MAX_SECONDS
    try:
        return parser.parse(
            lambda at, _point: raw[at : at + 65536], progress_callback=lambda _at, _error: time.thread_time() > stop
        )
    except ValueError:
        parser.reset()
        return None


def _parts(raw: bytes) -> list[bytes]:
    """Lines, and long lines cut behind separators, each short enough for any content."""
    found: list[bytes] = []
    for line in raw.split(b"\n"):
        while len(line) > _SURELY_SHORT:
            cut = max(line.rfind(c, 0, _SURELY_SHORT) for c in (b";", b"|", b"&")) + 1 or _SURELY_SHORT
            found.append(line[:cut])
            line = line[cut:]
        found.append(line)
    return [part for part in found if part.strip()]


def _from_both_ends(parts: list[bytes]) -> Iterator[bytes]:
    for i in range((len(parts) + 1) // 2):
        yield parts[i]
        if i < len(parts) - 1 - i:
            yield parts[-1 - i]


class _Reader:
    """Walks the tree with a stack of its own, in source order, so nesting of any depth is only a longer list."""

    def __init__(self, raw: bytes, variables: dict[str, str], result: Parsed) -> None:
        self._raw = raw
        self._variables = variables
        self._result = result
        self._stack: list[_Task] = []

    def _text(self, node: Node) -> str:
        # Not node.text: for a text given by a callable that asks the callable again, once a node.
        return self._raw[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def read(self, root: Node) -> None:
        stack = self._stack
        stack.append(_Task(root, None, _Slot(), None))
        left = MAX_NODES
        while stack:
            task = stack.pop()
            left -= 1
            if left < 0:
                self._result.truncated = True
                return
            node = task.node
            kind = node.type
            before = len(stack)
            if task.redirect:
                self._redirect(node, task)
            elif kind == "command":
                self._command(node, task)
            elif kind == "pipeline":
                self._pipeline(node, task)
            elif kind == "redirected_statement":
                self._redirected(node, task)
            elif kind == "variable_assignment":
                self._assign(node, None)
            elif kind == "&":
                if task.out.last is not None:
                    task.out.last.background = True
            elif kind in ("string", "concatenation", "test_command", "heredoc_body"):
                self._word(node)  # queues the substitutions in it
            elif kind not in _LEAVES:
                stack.extend(
                    _Task(child, task.feed, task.out, task.into)
                    for child in node.children
                    if child.child_count or child.type == "&"
                )
            # What was queued in source order is to be read in it.
            stack[before:] = stack[before:][::-1]

    def _pipeline(self, node: Node, task: _Task) -> None:
        stages = [c for c in node.children if c.child_count]
        feed = task.feed
        tasks: list[_Task] = []
        for stage in stages:
            out = task.out if stage is stages[-1] else _Slot()
            tasks.append(_Task(stage, feed, out, task.into))
            feed = out
        self._stack.extend(tasks)

    def _redirected(self, node: Node, task: _Task) -> None:
        # All share one slot: the body's last command is what redirections apply to and what a here-document's own
        # pipe reads.
        tasks = [
            _Task(c, task.feed, task.out, task.into, c.type.endswith("_redirect"))
            for c in node.children
            if c.child_count
        ]
        self._stack.extend(tasks)

    def _redirect(self, node: Node, task: _Task) -> None:
        command = task.out.last
        if command is None:
            # `> file` alone truncates; an empty command carries it.
            command = self._add(Simple(), task)
        kind = node.type
        if kind == "heredoc_redirect":
            later: list[_Task] = []
            for child in node.children:
                if child.type == "heredoc_body":
                    command.text = self._text(child)
                    self._word(child)  # queues the substitutions in it
                elif child.type.endswith("_redirect"):
                    later.append(_Task(child, task.feed, task.out, task.into, True))
                elif child.child_count:
                    later.append(_Task(child, _Slot(command), task.out, task.into))
            self._stack.extend(later)
            return
        op = ""
        target: Word | None = None
        for child in node.children:
            if child.type == "file_descriptor":
                continue
            if not child.is_named and not op:
                op = child.type
                continue
            word = self._word(child)
            if kind == "herestring_redirect":
                command.text = word.text
            elif target is None:
                target = word
                command.redirects.append(Redirect(op, target))
            else:
                # The grammar counts all that follows as targets: `rm >log -rf x`.
                command.argv.append(word)

    def _command(self, node: Node, task: _Task) -> None:
        command = Simple(stdin=task.feed.last if task.feed is not None else None)
        for child in node.children:
            kind = child.type
            if kind == "command_name":
                if child.child_count:
                    command.argv.append(self._word(child.children[0]))
            elif kind == "variable_assignment":
                self._assign(child, command)
            elif kind == "herestring_redirect":
                command.text = self._word(child.children[-1]).text
            elif kind == "file_redirect":
                self._redirect(child, _Task(child, None, _Slot(command), task.into))
            else:
                command.argv.append(self._word(child))
        self._add(command, task)

    def _add(self, command: Simple, task: _Task) -> Simple:
        task.out.last = command
        self._result.commands.append(command)
        if task.into is not None:
            task.into.append(command)
        return command

    def _assign(self, node: Node, command: Simple | None) -> None:
        children = node.children
        if len(children) < 2:
            return
        name = self._text(children[0])
        value = self._word(children[-1]) if len(children) > 2 else Word("")
        if command is not None:
            command.assignments.append((name, value))
        if not value.dynamic and len(value.text) <= _EXPAND_LIMIT:
            self._variables[name] = value.text
        else:
            self._variables.pop(name, None)

    def _word(self, node: Node) -> Word:
        """The text of a word after quote removal and expansion of what is known."""
        kind = node.type
        if kind == "word" and not node.child_count:
            text = self._text(node)
            return Word(_ESCAPED.sub(_unescape, text) if "\\" in text else text)
        word = Word("")
        parts: list[str] = []
        nodes = [node]
        while nodes:
            node = nodes.pop()
            kind = node.type
            if kind == "word":
                text = self._text(node)
                parts.append(_ESCAPED.sub(_unescape, text) if "\\" in text else text)
            elif kind == "string_content":
                text = self._text(node)
                parts.append(_ESCAPED_IN_STRING.sub(_unescape, text) if "\\" in text else text)
            elif kind == "raw_string":
                parts.append(self._text(node)[1:-1])
            elif kind == "ansi_c_string":
                parts.append(_ANSI.sub(_unescape_ansi, self._text(node)[2:-1]))
            elif kind in ("command_substitution", "process_substitution"):
                word.dynamic = True
                if isinstance(word.inner, tuple):
                    word.inner = []
                self._stack.append(_Task(node, None, _Slot(), word.inner))
            elif kind in ("simple_expansion", "expansion"):
                self._expand(node, word, parts, nodes)
            elif kind in ("string", "concatenation", "translated_string", "heredoc_body"):
                nodes.extend(c for c in reversed(node.children) if c.is_named or c.type == "$")
            elif node.child_count and kind not in ("brace_expression",):
                nodes.extend(c for c in reversed(node.children) if c.is_named)
            else:
                parts.append(self._text(node))
        word.text = "".join(parts)
        return word

    def _expand(self, node: Node, word: Word, parts: list[str], nodes: list[Node]) -> None:
        name: str | None = None
        rest: list[Node] = []
        for child in node.children:
            if child.type in ("variable_name", "special_variable_name") and name is None:
                name = self._text(child)
            elif child.is_named:
                rest.append(child)
        value = self._variables.get(name or "")
        if value is not None:
            parts.append(value)
        elif rest:
            # ${NAME:-default}: what is not known is most likely unset.
            word.dynamic = True
            nodes.extend(reversed(rest))
        else:
            word.dynamic = True
            parts.append(self._text(node))


def _unescape(m: re.Match[str]) -> str:
    char = m.group(1)
    return "" if char == "\n" else char


def _unescape_ansi(m: re.Match[str]) -> str:
    code = m.group(1) or m.group(2) or m.group(3)
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else ""
    if m.group(4) is not None:
        return chr(int(m.group(4), 8) & 0xFF)
    return _ANSI_CHARS.get(m.group(5), m.group(5))
