"""Commands whose arguments need more than a table: files, archives, git, containers, and what runs later."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.capture.facts import hosts
from services.capture.facts.argv import has_option, stdin_text, subcommand
from services.capture.facts.patches import read_patch
from services.capture.facts.shell import Simple, Word
from services.capture.words import words

if TYPE_CHECKING:
    from services.capture.facts.commands import Interpreter

_DOCKER_VALUED = frozenset(
    words(
        "-v --volume -e --env -p --publish --name -w --workdir -u --user --network --net --mount "
        "--env-file -f --file -t --tag -h --hostname --entrypoint -m --memory --cpus --label -l "
        "--add-host --device --cap-add --cap-drop --security-opt --platform --build-arg --target "
        "--restart --gpus --ipc --pid --shm-size --ulimit --tmpfs --volumes-from --dns --log-driver"
    )
)


def rm(run: Interpreter, args: list[str], _: Simple) -> None:
    if has_option(args, "rR", "--recursive") and has_option(args, "f", "--force"):
        run.to.recursive_force = True


def find(run: Interpreter, args: list[str], command: Simple) -> None:
    to = run.to
    i = 0
    roots: list[str] = []
    while i < len(args) and not args[i].startswith(("-", "(", "!")):
        roots.append(args[i])
        to.path(args[i], "read")
        i += 1
    while i < len(args):
        text = args[i]
        i += 1
        if text in ("-exec", "-execdir", "-ok", "-okdir"):
            rest: list[Word] = []
            while i < len(args) and args[i] not in (";", "+"):
                rest.append(Word(args[i] if args[i] != "{}" else (roots[0] if roots else ".")))
                i += 1
            run.todo.append(Simple(rest, [], [], command.stdin))
        elif text == "-delete":
            to.recursive_force = True
            for root in roots or ["."]:
                to.path(root, "delete")
        elif text in ("-fprint", "-fls"):
            to.path(args[i] if i < len(args) else "", "write")


def dd(run: Interpreter, args: list[str], _: Simple) -> None:
    for text in args:
        key, _eq, value = text.partition("=")
        if key == "if":
            run.to.path(value, "read")
        elif key == "of":
            run.to.path(value, "write")


def tar(run: Interpreter, args: list[str], _: Simple) -> None:
    to = run.to
    words = list(args)
    if words and not words[0].startswith("-"):
        words[0] = "-" + words[0]
    creates = any(
        (a.startswith("-") and not a.startswith("--") and set("cru") & set(a[1:])) or a in ("--create", "--append")
        for a in words[:3]
    )
    i = 0
    while i < len(words):
        text = words[i]
        i += 1
        if text.startswith("--"):
            option, equals, value = text.partition("=")
            if option in ("--file", "--directory", "--files-from") and not equals:
                value = words[i] if i < len(words) else ""
                i += 1
            if option == "--file":
                to.path(value, "write" if creates else "read")
            elif option == "--directory":
                to.path(value, "read" if creates else "write")
            elif option == "--files-from":
                to.path(value, "read")
        elif text.startswith("-") and len(text) > 1:
            for letter in text[1:]:
                if letter in "fCTX" and i < len(words):
                    value = words[i]
                    i += 1
                    if letter == "f":
                        if ":" in value and not value.startswith(("/", ".")):
                            to.host(hosts.loose(value.partition(":")[0]))
                        to.path(value, "write" if creates else "read")
                    elif letter == "C":
                        to.path(value, "read" if creates else "write")
                    else:
                        to.path(value, "read")
        elif creates:
            to.path(text, "read")


def git(run: Interpreter, args: list[str], _: Simple) -> None:
    to = run.to
    sub = subcommand("git", args)
    at = args.index(sub) if sub in args else len(args)
    rest = args[at + 1 :]
    plain = [a for a in rest if not a.startswith("-")]
    if sub == "push" and (
        has_option(rest, "f", "--force")
        or any(a.startswith(("--force-with-lease", "--mirror", "--delete", "+")) for a in rest)
    ):
        to.recursive_force = True
    if sub == "clean" and has_option(rest, "f", "--force"):
        to.recursive_force = True
    if sub in ("clone", "fetch", "pull", "push", "ls-remote", "remote", "submodule"):
        for text in plain:
            if (
                re.match(r"(?:[\w.\-]+@)?[\w.\-]+:(?!//)[^\s]", text)
                and not re.match(r"[A-Za-z]:\\|[\w./\-]+:[\w./\-]+\Z", text)
            ) or ("@" in text and ":" in text and "://" not in text):
                to.host(hosts.host(text.rpartition("@")[2].partition(":")[0], 22))
    if sub == "clone" and len(plain) > 1:
        to.path(plain[1], "write")
    elif sub in ("rm",):
        for text in plain:
            to.path(text, "delete")
    elif sub in ("add", "show", "diff", "blame", "log", "apply", "am"):
        for text in plain:
            run.maybe_path(text, "read")
    elif sub in ("checkout", "restore"):
        for text in plain:
            run.maybe_path(text, "write")
    elif sub == "mv" and len(plain) > 1:
        for text in plain[:-1]:
            to.path(text, "delete")
        to.path(plain[-1], "write")


def container(run: Interpreter, args: list[str], command: Simple) -> None:
    to = run.to
    sub = subcommand("docker", args)
    at = args.index(sub) if sub in args else len(args)
    rest = args[at + 1 :]
    i = 0
    plain_at = None
    while i < len(rest):
        text = rest[i]
        option, equals, value = text.partition("=")
        if text.startswith("-") and len(text) > 1:
            if option in _DOCKER_VALUED and not equals:
                value = rest[i + 1] if i + 1 < len(rest) else ""
                i += 1
            if option in ("-v", "--volume") and value:
                to.path(value.split(":")[0], "read" if value.endswith(":ro") else "write")
            elif option == "--mount":
                m = re.search(r"(?:source|src)=([^,]+)", value)
                if m:
                    to.path(m.group(1), "read" if "readonly" in value else "write")
            elif option in ("--env-file", "-f", "--file") and value:
                to.path(value, "read")
        elif plain_at is None:
            plain_at = i
            if sub in ("exec", "run"):
                break
        i += 1
    plain = [a for a in rest if not a.startswith("-")]
    if sub in ("exec", "run") and plain_at is not None:
        inner = rest[plain_at + 1 :]
        if sub == "run":
            image(run, rest[plain_at])
        if inner:
            run.todo.append(Simple([Word(w) for w in inner], [], [], command.stdin, command.text))
    elif sub in ("pull", "push") and plain:
        image(run, plain[0])
    elif sub == "cp" and len(plain) == 2:
        for text, kind in ((plain[0], "read"), (plain[1], "write")):
            if ":" not in text:
                to.path(text, kind)  # type: ignore[arg-type]
    elif sub == "login":
        for text in plain:
            to.host(hosts.loose(text))


def image(run: Interpreter, reference: str) -> None:
    registry, slash, _ = reference.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        run.to.host(hosts.loose(registry))


def kubectl(run: Interpreter, args: list[str], command: Simple) -> None:
    sub = subcommand("kubectl", args)
    if sub in ("exec", "run", "debug") and "--" in args:
        rest = args[args.index("--") + 1 :]
        if rest:
            run.todo.append(Simple([Word(w) for w in rest], [], [], command.stdin, command.text))
    if sub == "cp":
        plain = [a for a in args[args.index(sub) + 1 :] if not a.startswith("-")]
        for text, kind in zip(plain[:2], ("read", "write"), strict=False):
            if ":" not in text:
                run.to.path(text, kind)  # type: ignore[arg-type]


def su(run: Interpreter, args: list[str], _: Simple) -> None:
    for i, text in enumerate(args):
        if text in ("-c", "--command") and i + 1 < len(args):
            run.text(args[i + 1])
        elif text.startswith("--command="):
            run.text(text[10:])


def detached(run: Interpreter, args: list[str], _: Simple) -> None:
    """tmux, screen: a session that goes on by itself, and the command in it."""
    if any(a in ("-d", "-dm", "-dmS", "new", "new-session", "new-window", "send-keys") for a in args):
        run.to.background = True
    for text in args:
        if " " in text:
            run.text(text)


def script(run: Interpreter, args: list[str], _: Simple) -> None:
    for i, text in enumerate(args):
        if text in ("-c", "--command") and i + 1 < len(args):
            run.text(args[i + 1])


def later(run: Interpreter, _: list[str], command: Simple) -> None:
    """at, batch, crontab -: what comes on standard input runs later."""
    text = stdin_text(command)
    if text:
        run.text(text)


def sed(run: Interpreter, args: list[str], _: Simple) -> None:
    if any(re.match(r"-[nErzs]*i|--in-place", a) for a in args):
        plain = [a for a in args if not a.startswith("-")]
        for text in plain[0 if has_option(args, "e", "--expression") else 1 :]:
            run.to.path(text, "write")


def awk(run: Interpreter, args: list[str], _: Simple) -> None:
    for text in args:
        if "system(" in text or "getline" in text:
            run.read_code(text)


def apply_patch(run: Interpreter, args: list[str], command: Simple) -> None:
    text = stdin_text(command) or (args[0] if args else "")
    read_patch(run.to, text)
