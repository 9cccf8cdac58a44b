"""What one server's entry becomes: which edits send it through the proxy, and which take them back."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from schemas.errors import UserError
from services.mcp_proxy.http.routes import parse_route
from services.mcp_proxy.stdio.launch import parse
from services.mcp_proxy.wrap.document import Document, Edit, Entry, Value

LISTEN = "127.0.0.1:8790"
"""Where `agenttrace proxy http` listens unless told otherwise."""

_OURS = f"http://{LISTEN}/mcp/"
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_NOT_IN_ROUTE = re.compile(r"[^A-Za-z0-9._-]+")
_FIRST = re.compile(r"\r?\n[ \t]*\Z")

Kind = Literal["stdio", "remote", "unknown"]


@dataclass(frozen=True, slots=True)
class State:
    """How an entry stands: wrapped or not, and if it cannot be changed, why."""

    kind: Kind
    wrapped: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Edits of one entry, the fields they give it (None: the field goes), and the route it needs (name → origin)."""

    edits: tuple[Edit, ...]
    fields: dict[str, str | list[str] | None]
    route: dict[str, str] = field(default_factory=dict)


def state(entry: Entry) -> State:
    """How the entry stands, by what it holds."""
    data = entry.data
    if not isinstance(data, dict):
        return State("unknown", problem="it is not an object")
    command, url, type_ = data.get("command"), data.get("url"), data.get("type")
    if command is None and isinstance(url, str):
        return _remote(entry, url, type_)
    args = data.get("args", [])
    if not isinstance(command, str) or not command:
        return State(
            "unknown", problem="it has neither a command nor a url" if command is None else "no usable command"
        )
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        return State("stdio", problem="its args are not a list of texts")
    if PurePath(command).name == "agenttrace" and args[:2] == ["proxy", "stdio"]:
        return State("stdio", wrapped=True)
    if "command" not in entry.fields or ("args" in data and "args" not in entry.fields):
        return State("stdio", problem="it is written in a way that cannot be edited")
    return State("stdio", problem=None if entry.name else "it has no name")


def _remote(entry: Entry, url: str, type_: object) -> State:
    if url.startswith(_OURS):
        return State("remote", wrapped=True)
    origin = _ORIGIN.match(url)
    if type_ in ("ws", "websocket") or url.startswith(("ws:", "wss:")):
        return State("remote", problem="the proxy does not speak WebSocket")
    if origin is None or "url" not in entry.fields:
        return State("remote", problem="its URL is none of http:// or https://")
    if "${" in origin[0]:
        return State("remote", problem="the proxy cannot know what the variable in the host of its URL stands for")
    try:
        parse_route(f"x={origin[0]}")
    except UserError as error:
        return State("remote", problem=str(error).removeprefix("--route x: "))
    return State("remote")


def wrap_stdio(document: Document, entry: Entry, program: str) -> Change:
    """The entry runs `program proxy stdio --server NAME -- COMMAND ARGS…`."""
    command, args = entry.fields["command"], entry.fields.get("args")
    words = ["proxy", "stdio", "--server", entry.name, "--"]
    # The command keeps its spelling, so that it can be put back as it was.
    tokens = ", ".join([*map(document.quote, words), document.text[slice(*command.span)]])
    if args is None:
        insertion = Edit(command.pair, command.pair, f"{command.lead}[{tokens}]{command.trail}")
    elif args.items:
        at = args.items[0].start
        before = _FIRST.search(document.text[args.span.start + 1 : at])
        insertion = Edit(at, at, f"{tokens},{before[0] if before else ' '}")
    else:
        insertion = Edit(args.span.start + 1, args.span.start + 1, tokens)
    given = entry.data.get("args", [])
    return Change(
        (Edit(*command.span, document.quote(program)), insertion),
        {"command": program, "args": [*words, entry.data["command"], *given]},
    )


def unwrap_stdio(document: Document, entry: Entry) -> Change | None:
    """The entry as it was; None where it was not written by a wrap, so that nobody can tell."""
    given = entry.data["args"]
    options = parse(given[2:])
    command, args = entry.fields.get("command"), entry.fields.get("args")
    if options is None or command is None or args is None or len(args.items) != len(given):
        return None
    at = len(given) - len(options.command)
    if at < 1 or given[at - 1] != "--":
        return None
    text, items = document.text, args.items
    rest = given[at + 1 :]
    fields: dict[str, str | list[str] | None] = {"command": given[at], "args": rest}
    if rest:
        removal = Edit(items[0].start, items[at + 1].start, "")
    elif text[items[-1].end : command.pair] == f"]{command.trail}":
        # An entry without args got them in front of its command.
        removal = Edit(args.pair, command.pair, "")
        fields["args"] = None
    else:
        removal = Edit(items[0].start, _after(text, args), "")
    return Change((Edit(*command.span, text[slice(*items[at])]), removal), fields)


def _after(text: str, args: Value) -> int:
    """Where the last item ends, or the comma after it."""
    end = args.items[-1].end
    comma = text.find(",", end, args.span.end)
    return comma + 1 if comma >= 0 and not text[end:comma].strip() else end


def wrap_remote(document: Document, entry: Entry, routes: MutableMapping[str, str]) -> Change:
    """The entry's url leads to a route of the local proxy, which joins `routes` (name → origin).

    Only the origin goes into the route: path and query, which may hold a key, stay in the client's own file.
    """
    url: str = entry.data["url"]
    origin = _ORIGIN.match(url)
    assert origin is not None, "state() let it through"
    name = _route(entry.name, origin[0], routes)
    routes[name] = origin[0]
    ours = _OURS + name + url[origin.end() :]
    return Change((Edit(*entry.fields["url"].span, document.quote(ours)),), {"url": ours}, {name: origin[0]})


def unwrap_remote(document: Document, entry: Entry, routes: MutableMapping[str, str]) -> Change | None:
    """The entry's url as it was; None without its route."""
    url: str = entry.data["url"]
    name, rest = re.fullmatch(r"([A-Za-z0-9._-]*)(.*)", url.removeprefix(_OURS), re.DOTALL).groups()  # type: ignore[union-attr]
    if name not in routes or "url" not in entry.fields:
        return None
    theirs = routes[name] + rest
    return Change((Edit(*entry.fields["url"].span, document.quote(theirs)),), {"url": theirs})


def _route(name: str, origin: str, routes: Mapping[str, str]) -> str:
    plain = _NOT_IN_ROUTE.sub("_", name)[:56].strip("._") or "server"
    found, number = plain, 1
    while routes.get(found, origin) != origin:
        number += 1
        found = f"{plain}-{number}"
    return found
