"""Facts of a tool call by the names of its arguments: shell lines, paths, URLs and hosts wherever a runtime or MCP
server puts them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from schemas.facts import PathKind
from services.capture.facts import hosts
from services.capture.facts.collect import Collector
from services.capture.facts.commands import Interpreter
from services.capture.facts.patches import is_patch, read_patch
from services.capture.words import words

MAX_NODES = 5000
# Texts longer than this are searched for URLs at both ends only.
_MAX_TEXT = 256 * 1024

_PATH_NAMES = frozenset(
    words(
        "path paths file files filepath filepaths filename filenames targetfile notebookpath "
        "imagepath outputpath inputpath destination dest dst source src directory dir folder root "
        "oldpath newpath from to uri uris fileuri location localpath remotepath savepath outfile "
        "infile filelist target includepath repopath configpath output keyfile attachments attachment"
    )
)
# Of these the name alone does not make a path: the value must look like one.
_LOOSE_NAMES = frozenset(
    words("source src destination dest dst root from to target location output attachments attachment uri uris files")
)
_COMMAND_NAMES = frozenset(
    ["command", "commands", "cmd", "cmds", "script", "shellcommand", "shell", "bash", "commandline", "line"]
)
_CODE_NAMES = frozenset(["code", "program", "expression", "javascript", "python", "function"])
_HOST_NAMES = frozenset(
    ["host", "hostname", "server", "address", "addr", "domain", "endpoint", "ip", "ipaddress", "remotehost"]
)
_CWD_NAMES = frozenset(("cwd", "workdir", "workingdirectory", "workingdir"))
_NOT_NAME = re.compile(r"[^a-z0-9]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PATHLIKE = re.compile(
    r"(?:file://|/|~|\.{1,2}/|[A-Za-z]:\\|\.[A-Za-z])[^\n\x00]*\Z|[^\s:\x00]+/[^\s\x00]*\Z|[\w\-. ]+\.\w{1,8}\Z"
)

_DELETING = frozenset(["delete", "remove", "rm", "unlink", "trash", "destroy", "purge"])
_MOVING = frozenset(["move", "rename", "mv"])
_WRITING = frozenset(
    words(
        "write edit create update append replace insert save patch put mkdir touch upload modify "
        "multiedit notebookedit set add apply download export generate str copy cp"
    )
)
_EXECUTING = frozenset(["execute", "exec"])
_SHELL_TOOLS = frozenset(["bash", "shell", "exec", "terminal", "run", "command", "console", "sh", "process"])
# Values of `command` that are an operation and not a shell line, as in text editor tools.
_OPERATIONS: dict[str, PathKind] = {
    "view": "read",
    "read": "read",
    "create": "write",
    "write": "write",
    "str_replace": "write",
    "insert": "write",
    "undo_edit": "write",
    "edit": "write",
    "append": "write",
    "delete": "delete",
    "rename": "write",
}


def extract(to: Collector, tool_source: str, tool_name: str, value: Any) -> None:
    """Reads a tool's input into `to`. Any JSON value; what is not understood is skipped. Bounded; says so in
    `to.truncated`."""
    words, kind = _tool(tool_name)
    reader = Interpreter(to)
    if isinstance(value, str):
        if is_patch(value):
            read_patch(to, value)
        elif tool_source == "shell" or words & _SHELL_TOOLS:
            reader.shell(value)
        else:
            _urls(to, value)
        return
    stack: list[tuple[Any, str]] = [(value, "")]
    left = MAX_NODES
    while stack:
        node, name = stack.pop()
        left -= 1
        if left < 0:
            to.truncated = True
            return
        if isinstance(node, dict):
            _mapping(to, reader, node, stack, kind=kind, words=words)
        elif isinstance(node, (list, tuple)):
            for item in reversed(node[:MAX_NODES]):
                if isinstance(item, str):
                    _string(to, reader, name, item, kind)
                elif isinstance(item, (dict, list, tuple)):
                    stack.append((item, name))


def _mapping(
    to: Collector,
    reader: Interpreter,
    node: dict[Any, Any],
    stack: list[tuple[Any, str]],
    *,
    kind: PathKind,
    words: frozenset[str],
) -> None:
    names = {key: _plain(key) for key in node if isinstance(key, str)}
    operation = node.get("command")
    if isinstance(operation, str) and operation in _OPERATIONS and any(n in _PATH_NAMES for n in names.values()):
        kind = _OPERATIONS[operation]
        node = {k: v for k, v in node.items() if k != "command"}
    if node.get("run_in_background") is True or node.get("background") is True or node.get("is_background") is True:
        to.background = True
    for key, name in names.items():
        child = node.get(key)
        if name in _CWD_NAMES and isinstance(child, str) and child:
            to.cwd = child if child.startswith(("/", "~")) or not to.cwd else f"{to.cwd}/{child}"
    port = node.get("port")
    later: list[tuple[Any, str]] = []
    for key, name in names.items():
        child = node.get(key)
        if isinstance(child, str):
            if name in _HOST_NAMES and "://" not in child:
                found = hosts.loose(child)
                if found is not None and isinstance(port, int) and found.port is None:
                    found = hosts.host(found.host, port)
                to.host(found)
            else:
                _string(to, reader, name, child, _end_kind(kind, name, words))
        elif (
            isinstance(child, (list, tuple))
            and name in _COMMAND_NAMES
            and child
            and all(isinstance(c, str) for c in child)
        ):
            _command_list(reader, name, list(child))
        elif isinstance(child, (dict, list, tuple)):
            later.append((child, name))
    stack.extend(reversed(later))


def _string(to: Collector, reader: Interpreter, name: str, text: str, kind: PathKind) -> None:
    if not text:
        return
    if name in _COMMAND_NAMES:
        if is_patch(text):
            read_patch(to, text)
        else:
            reader.shell(text)
    elif name in _CODE_NAMES:
        reader.code(text)
    elif name in _PATH_NAMES and "\n" not in text and len(text) <= 4096:
        if "://" in text and not text.startswith("file://"):
            _urls(to, text)
        elif name not in _LOOSE_NAMES or _PATHLIKE.match(text):
            to.path(text, kind)
    elif name in ("patch", "diff", "input") and is_patch(text):
        read_patch(to, text)
    else:
        _urls(to, text)


def _command_list(reader: Interpreter, name: str, words: list[str]) -> None:
    """A list under `command` is an argument vector; under `commands` it is several lines."""
    if name in ("commands", "cmds"):
        for line in words[:256]:
            reader.shell(line)
    else:
        reader.argv(words)


def _urls(to: Collector, text: str) -> None:
    if "://" not in text and "/dev/" not in text:
        return
    if len(text) > _MAX_TEXT:
        to.truncated = True
        text = text[: 3 * _MAX_TEXT // 4] + "\n" + text[-_MAX_TEXT // 4 :]
    for found in hosts.in_text(text):
        to.host(found)


@lru_cache(maxsize=4096)
def _plain(key: str) -> str:
    """An argument name without case and separators: `file_path`, `filePath` → filepath."""
    return _NOT_NAME.sub("", key[:64].lower())


@lru_cache(maxsize=4096)
def _tool(name: str) -> tuple[frozenset[str], PathKind]:
    words = frozenset(w.lower() for w in _WORD.findall(name[:256]))
    return words, _kind_of(words)


def _kind_of(words: frozenset[str]) -> PathKind:
    if words & _DELETING:
        return "delete"
    if words & _WRITING or words & _MOVING:
        return "write"
    if words & _EXECUTING:
        return "exec"
    return "read"


def _end_kind(kind: PathKind, name: str, words: frozenset[str]) -> PathKind:
    """Moving deletes at the source, copying and uploading read there."""
    if name in ("source", "src", "from", "oldpath"):
        if words & _MOVING:
            return "delete"
        if words & {"copy", "cp", "upload"}:
            return "read"
    return kind
