"""What a simple command does: follows wrappers to the command they run and reads paths, hosts and installs from
its arguments."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator

from schemas.facts import PathKind
from services.capture.facts import hosts
from services.capture.facts.collect import Collector
from services.capture.facts.shell import Redirect, Simple, Word, parse
from services.capture.facts.tables import (
    DECODERS,
    DETACHING,
    FETCHERS,
    INSTALLERS,
    INTERPRETERS,
    PRIVILEGED,
    SHELLS,
    SPECS,
    SUBCOMMANDS,
    WRAPPERS,
    Spec,
)

MAX_COMMANDS = 5000
MAX_TEXTS = 64
MAX_WORDS = 1000
_MAX_FLAGS = 16
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/", "/opt/homebrew/bin/")
_PATHLIKE = re.compile(
    r"(?:~|\.{1,2})?/[^\s\x00]*\Z|[\w.\-]+(?:/[\w.*\-]+)+\Z|\.[A-Za-z][\w.\-]*\Z|id_(?:rsa|dsa|ecdsa|ed25519)(?:\.pub)?\Z|[\w\-]+\.(?:pem|key|p12|pfx|env|json|ya?ml"
    r"|toml|ini|cfg|conf|sh|py|js|ts|sql|db|sqlite3?|log|txt|md|csv|tar|tgz|gz|zip|crt|kubeconfig)\Z|kubeconfig\Z"
)
_SHORT = re.compile(r"-[A-Za-z0-9]{1,5}\Z")
_LONG = re.compile(r"--[A-Za-z][A-Za-z0-9\-]{0,60}")
# Tools whose options are words behind one dash.
_WORD_OPTIONS = frozenset(
    ("find", "openssl", "java", "javac", "terraform", "go", "ffmpeg", "convert", "ip", "xclip", "security", "ld", "gcc")
)
_CODE_PATH = re.compile(r"""['"]((?:/|~/|\.{1,2}/)[^'"\n\x00]{1,400}|\.env[\w.]*|[\w.\-/]*id_(?:rsa|ed25519))['"]""")
_CODE_SHELL = re.compile(
    r"""(?:\bsystem|\bpopen|\brun|\bcall|check_output|check_call|getoutput|\bexec|execSync|spawn(?:Sync)?|\bterminal|shell_exec|Popen)\s*\(\s*[rfb]{0,2}(["'])((?:\\.|(?!\1)[^\\\n]){1,4000})\1""",
    re.DOTALL,
)
_HEREDOC_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|0([0-7]{1,3})|([ntr\\]))")


class Interpreter:
    """Reads the commands of one call into a Collector. Work is a list, never recursion; texts found inside are
    read in turn."""

    def __init__(self, collector: Collector) -> None:
        self._to = collector
        self._variables: dict[str, str] = {}
        self._todo: list[Simple] = []
        self._texts = MAX_TEXTS
        self._left = MAX_COMMANDS

    def shell(self, text: str) -> None:
        """A shell text."""
        self._text(text)
        self._drain()

    def argv(self, words: list[str]) -> None:
        """One command as an argument list."""
        self._todo.append(Simple([Word(w) for w in words]))
        self._drain()

    def code(self, text: str) -> None:
        """A program in some other language: URLs, quoted paths, and what it hands to a shell."""
        self._code(text)
        self._drain()

    def _text(self, text: str, feed: Simple | None = None) -> None:
        """Queues the commands of a shell text; the first of them has the standard input of `feed`."""
        self._texts -= 1
        if self._texts < 0:
            self._to.truncated = True
            return
        parsed = parse(text, self._variables)
        self._to.truncated |= parsed.truncated
        if (
            feed is not None
            and parsed.commands
            and parsed.commands[0].stdin is None
            and parsed.commands[0].text is None
        ):
            parsed.commands[0].stdin, parsed.commands[0].text = feed.stdin, feed.text
        self._todo.extend(reversed(parsed.commands))

    def _drain(self) -> None:
        while self._todo:
            self._left -= 1
            if self._left < 0:
                self._to.truncated = True
                self._todo.clear()
                return
            self._command(self._todo.pop())

    # One command

    def _command(self, command: Simple) -> None:
        to = self._to
        for redirect in command.redirects:
            self._redirect(redirect)
        for name, value in command.assignments:
            if value.text and (
                name in ("KUBECONFIG", "GOOGLE_APPLICATION_CREDENTIALS") or name.endswith(("_FILE", "_CONFIG"))
            ):
                to.path(value.text, "read")
        if command.background:
            to.background = True
        if not command.argv:
            return
        words = command.argv
        if len(words) > MAX_WORDS:
            to.truncated = True
            words = command.argv = words[: MAX_WORDS // 2] + words[-MAX_WORDS // 2 :]
        first = words[0].text
        name = posixpath.basename(first).lower() if "/" in first else first
        if not name or "\n" in name:
            return
        if name.endswith(".exe"):
            name = name[:-4]
        args = [w.text for w in words[1:]]
        if "/" in first and not first.startswith(_SYSTEM_FOLDERS) and "://" not in first:
            if to.path(first, "exec") in to.fetched:
                to.pipe_to_shell = True
        for text in args:
            if "://" in text or "/dev/" in text:
                for found in hosts.in_text(text):
                    to.host(found)
        shown = "python" if name.startswith("python") and name[6:].replace(".", "").isdecimal() else name
        sub = _subcommand(shown, args)
        own = args
        if shown in WRAPPERS:
            own = args[: _wrapped_at(shown, words) - 1]
        elif shown == "find" and "-exec" in args:
            own = args[: args.index("-exec") + 1]
        to.command(name, sub, _flags(shown, own))
        if name in PRIVILEGED:
            to.sudo = True
        if name in DETACHING:
            to.background = True
        self._inside(shown, words, args, command, sub)

    def _redirect(self, redirect: Redirect) -> None:
        target = redirect.target.text
        for found in hosts.in_text(target):
            self._to.host(found)
        if target.isdecimal() or redirect.target.inner:
            return
        self._to.path(target, "read" if redirect.op in ("<", "<&") else "write")

    def _inside(self, name: str, words: list[Word], args: list[str], command: Simple, sub: str | None) -> None:
        to = self._to
        if name in ("cd", "pushd"):
            target = next((a for a in args if not a.startswith("-")), "~")
            to.cwd = _moved(to.cwd, target)
            return
        if name in WRAPPERS and self._wrapper(name, words, command):
            return
        if name in SHELLS:
            self._shell(words, args, command)
            return
        if name in INTERPRETERS:
            self._interpreter(name, words, args, command)
            return
        if name in ("eval", "trap", "alias"):
            if _fetches_any(words[1:]) and name == "eval":
                to.pipe_to_shell = True
            self._text(
                " ".join(args)
                if name == "eval"
                else "; ".join(a.partition("=")[2] if name == "alias" else a for a in args[:1])
            )
            return
        if name in ("source", "."):
            if _fetches_any(words[1:2]):
                to.pipe_to_shell = True
            elif args:
                to.path(args[0], "exec")
            return
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, args, command)
        if name in INSTALLERS or name in ("npx", "bunx", "uvx", "pacman"):
            self._install(name, args, sub)
        spec = SPECS.get(name)
        if spec is not None or handler is None:
            self._operands(spec or _ANY, args)

    # Commands that run commands

    def _wrapper(self, name: str, words: list[Word], command: Simple) -> bool:
        """Queues the command a wrapper runs. True when the rest of the arguments belongs to it."""
        at = _wrapped_at(name, words)
        for i, word in enumerate(words[1:at], 1):
            following = words[i + 1] if i + 1 < len(words) else None
            if following is None:
                break
            if (name == "flock" and word.text == "-c") or (name == "env" and word.text in ("-S", "--split-string")):
                self._text(" ".join(w.text for w in words[i + 1 :]))
                return True
            if name == "xargs" and word.text == "-a":
                self._to.path(following.text, "read")
        rest = words[at:]
        if not rest:
            return name != "xargs"
        if name in ("watch", "parallel") and " " in rest[0].text:
            self._text(" ".join(w.text for w in rest))
        else:
            self._todo.append(Simple(rest, [], [], command.stdin, command.text, command.background))
        return True

    def _shell(self, words: list[Word], args: list[str], command: Simple) -> None:
        to = self._to
        for i, text in enumerate(args):
            if text == "--":
                args, words = args[i + 1 :], words[i + 1 :]
                break
            if text.startswith("-") and len(text) > 1:
                if not text.startswith("--") and "c" in text:
                    if i + 1 < len(args):
                        if _fetches(words[i + 2]):
                            to.pipe_to_shell = True
                        self._text(args[i + 1], command)
                    return
                if "s" in text and not text.startswith("--"):
                    args = []
                    break
                if text in ("-o", "-O", "--rcfile", "--init-file", "+O"):
                    continue
            elif i and args[i - 1] in ("-o", "-O", "--rcfile", "--init-file"):
                continue
            else:
                if _fetches(words[i + 1]) or (text and not words[i + 1].inner and to.path(text, "exec") in to.fetched):
                    to.pipe_to_shell = True
                return
        self._program(command, shell=True)

    def _program(self, command: Simple, *, shell: bool) -> None:
        """A program that comes on standard input."""
        for upstream in _chain(command):
            name = _name(upstream)
            if name in FETCHERS or name in DECODERS or _fetches_any(upstream.argv):
                self._to.pipe_to_shell = True
        text = _stdin_text(command)
        if text:
            if shell:
                self._text(text)
            else:
                self._code(text)

    def _interpreter(self, name: str, words: list[Word], args: list[str], command: Simple) -> None:
        to = self._to
        inline = INTERPRETERS[name]
        if name.startswith("python") and "-m" in args:
            at = args.index("-m")
            if all(a.startswith("-") for a in args[:at]):
                self._todo.append(Simple(words[at + 2 :], [], [], command.stdin, command.text))
                return
        for i, text in enumerate(args):
            if text in inline or (
                len(text) > 2 and not text.startswith("--") and text[0] == "-" and "-" + text[-1] in inline
            ):
                if i + 1 < len(args):
                    if _fetches(words[i + 2]):
                        to.pipe_to_shell = True
                    self._code(args[i + 1])
                    for rest in args[i + 2 :]:
                        self._maybe_path(rest, "read")
                return
            if text == "-":
                break
            if not text.startswith("-"):
                if words[i + 1].inner:
                    to.pipe_to_shell |= _fetches(words[i + 1])
                elif name in ("bun", "deno") and not _PATHLIKE.match(text):
                    self._install(name, args, _subcommand(name, args))
                elif to.path(text, "exec") in to.fetched:
                    to.pipe_to_shell = True
                for rest in args[i + 1 :]:
                    self._maybe_path(rest, "read")
                return
        if args and args[-1] not in ("-",) and all(a in ("-V", "--version", "-h", "--help", "-v") for a in args):
            return
        self._program(command, shell=False)

    def _code(self, text: str) -> None:
        if len(text) > 256 * 1024:
            self._to.truncated = True
            text = text[: 192 * 1024] + text[-64 * 1024 :]
        for found in hosts.in_text(text):
            self._to.host(found)
        for m in _CODE_PATH.finditer(text):
            if "://" not in m.group(1):
                self._to.path(m.group(1), "read")
        for m in _CODE_SHELL.finditer(text):
            self._text(m.group(2).replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'"))

    # Arguments

    def _maybe_path(self, text: str, kind: PathKind) -> None:
        if "=" in text and text.startswith("-"):
            text = text.partition("=")[2]
        if "://" not in text and _PATHLIKE.match(text):
            self._to.path(text, kind)

    def _operands(self, spec: Spec, args: list[str]) -> None:
        plain: list[str] = []
        skip = spec.skip
        given_last = False
        i, n = 0, len(args)
        while i < n:
            text = args[i]
            i += 1
            if text == "--":
                plain += args[i:]
                break
            if len(text) > 1 and text[0] == "-":
                option, equals, value = text.partition("=")
                if option in spec.unless:
                    skip = 0
                if option in spec.valued:
                    if not equals:
                        value = args[i] if i < n else ""
                        i += 1
                    use = spec.valued[option]
                    if use is not None:
                        self._to.path(value, use)
                        given_last |= use == spec.last
                elif equals:
                    self._maybe_path(value, "read")
                elif text[1] != "-" and len(text) > 3 and "/" in text:
                    self._maybe_path(text[2:], "read")
            else:
                plain.append(text)
        plain = plain[skip:]
        if spec.operands is None:
            for text in plain:
                self._maybe_path(text, "read")
            return
        last = plain.pop() if spec.last is not None and len(plain) > 1 and not given_last else None
        for text in plain:
            if "://" not in text:
                self._to.path(text, spec.operands)
        if last is not None and spec.last is not None:
            self._to.path(last, spec.last)

    def _install(self, name: str, args: list[str], sub: str | None) -> None:
        if name in ("npx", "bunx", "uvx"):
            target = next((a for a in args if not a.startswith("-")), None)
            if target:
                self._to.package("pip" if name == "uvx" else "npm", _package(target))
            return
        if name == "pacman":
            if any(a.startswith("-S") for a in args):
                for a in args:
                    if not a.startswith("-"):
                        self._to.package("pacman", a)
            return
        manager, subs, valued = INSTALLERS[name]
        words = args
        if name == "uv" and sub in ("pip", "tool"):
            words = [a for a in args if a != sub]
            sub = next((a for a in words if not a.startswith("-")), None)
            subs = subs | {"install", "run"}
            valued = INSTALLERS["pip"][2]
        if sub not in subs:
            return
        seen = False
        i = 0
        while i < len(words):
            text = words[i]
            i += 1
            if text.startswith("-"):
                option, equals, value = text.partition("=")
                if option in valued and not equals:
                    value = words[i] if i < len(words) else ""
                    i += 1
                if option in ("-r", "--requirement", "-c", "--constraint", "-e") and value:
                    self._to.path(value, "read")
                if option in ("--git",) and value:
                    self._to.package(manager, value)
            elif not seen and text == sub:
                seen = True
            elif seen and text and not text.startswith((".", "/", "~")):
                self._to.package(manager, _package(text))

    # Single commands

    def _rm(self, args: list[str], _: Simple) -> None:
        if _has(args, "rR", "--recursive") and _has(args, "f", "--force"):
            self._to.recursive_force = True

    def _find(self, args: list[str], command: Simple) -> None:
        to = self._to
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
                self._todo.append(Simple(rest, [], [], command.stdin))
            elif text == "-delete":
                to.recursive_force = True
                for root in roots or ["."]:
                    to.path(root, "delete")
            elif text in ("-fprint", "-fls"):
                to.path(args[i] if i < len(args) else "", "write")

    def _dd(self, args: list[str], _: Simple) -> None:
        for text in args:
            key, _eq, value = text.partition("=")
            if key == "if":
                self._to.path(value, "read")
            elif key == "of":
                self._to.path(value, "write")

    def _tar(self, args: list[str], _: Simple) -> None:
        to = self._to
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

    def _curl(self, args: list[str], _: Simple) -> None:
        to = self._to
        i = 0
        while i < len(args):
            text = args[i]
            i += 1
            value: str | None = None
            if text.startswith("--"):
                option, equals, value = text.partition("=")
                if not equals:
                    value = None
            elif text.startswith("-") and len(text) > 1:
                # A cluster: the first letter that takes a value ends it.
                at = next((k for k in range(1, len(text)) if "-" + text[k] in _CURL_VALUED), 0)
                option = "-" + text[at] if at else text
                value = text[at + 1 :] or None if at else None
                if "O" in text[1 : at or None]:
                    self._remote_name(args)
            else:
                self._bare_url(text)
                continue
            if option in _CURL_VALUED and value is None:
                value = args[i] if i < len(args) else ""
                i += 1
            if value is None:
                continue
            use = _CURL_VALUED.get(option)
            if use == "@":
                for part in value.split(";")[0].split(","):
                    file = part.rpartition("=")[2] if option in ("-F", "--form", "--data-urlencode") else part
                    if file.startswith(("@", "<")):
                        to.path(file[1:], "read")
                    elif option == "--data-urlencode" and "@" in file:
                        to.path(file.partition("@")[2], "read")
            elif use == "host":
                to.host(hosts.loose(value))
            elif use == "write":
                to.fetched.add(to.path(value, "write"))
            elif use == "read" and value != "-" and not (option in ("-b", "--cookie") and "=" in value):
                to.path(value, "read")

    def _bare_url(self, text: str) -> None:
        """A URL without its scheme; a lone word is more likely the value of an option not known here."""
        if "://" not in text and (text == "localhost" or any(c in text for c in ".:/")):
            self._to.host(hosts.loose(text))

    def _remote_name(self, args: list[str]) -> None:
        for text in args:
            if not text.startswith("-") and "/" in text:
                path = re.split(r"[?#]", text.partition("://")[2] or text, maxsplit=1)[0]
                name = posixpath.basename(path.partition("/")[2])
                if name:
                    self._to.fetched.add(self._to.path(name, "write"))

    def _wget(self, args: list[str], _: Simple) -> None:
        to = self._to
        named = False
        i = 0
        while i < len(args):
            text = args[i]
            i += 1
            option, equals, value = text.partition("=")
            if text.startswith("-") and len(text) > 1:
                short = text[:2] if not text.startswith("--") else option
                cluster = not text.startswith("--") and text[-1] in "OPi" and len(text) > 2
                short = "-" + text[-1] if cluster else short
                if short in _WGET_VALUED:
                    if not equals and (cluster or len(text) == 2 or text.startswith("--")):
                        value = args[i] if i < len(args) else ""
                        i += 1
                    elif not text.startswith("--"):
                        value = text[2:]
                    use = _WGET_VALUED[short]
                    if use == "write" and value != "-":
                        named = True
                        to.fetched.add(to.path(value, "write"))
                    elif use == "read":
                        to.path(value, "read")
                    elif value == "-":
                        named = True
            else:
                self._bare_url(text)
        if not named:
            self._remote_name([a for a in args if "://" in a])

    def _ssh(self, args: list[str], command: Simple) -> None:
        to = self._to
        i = 0
        port: int | None = 22
        while i < len(args):
            text = args[i]
            i += 1
            if text.startswith("-") and len(text) > 1:
                if text[1] in "bcDEeFIiJLlmOopQRSWw":
                    value = text[2:] or (args[i] if i < len(args) else "")
                    i += 0 if text[2:] else 1
                    if text[1] in "iFS":
                        to.path(value, "read")
                    elif text[1] == "p" and value.isdecimal():
                        port = int(value)
                    elif text[1] == "J":
                        for hop in value.split(","):
                            to.host(hosts.loose(hop))
                    elif text[1] == "o" and value.lower().startswith("proxycommand"):
                        self._text(re.sub(r"(?i)^proxycommand[ =]+", "", value))
                continue
            name, given = hosts.split_port(text.rpartition("@")[2])
            to.host(hosts.host(name, given or port) if "://" not in text else hosts.loose(text))
            if i < len(args):
                self._text(" ".join(args[i:]), command)
            return

    def _copy_remote(self, args: list[str], _: Simple) -> None:
        """scp, rsync, sftp: `[user@]host:path` is remote, all else local; the last operand is written."""
        plain: list[str] = []
        i = 0
        while i < len(args):
            text = args[i]
            i += 1
            if text.startswith("-") and len(text) > 1:
                option = text.partition("=")[0]
                if option in ("-e", "--rsh"):
                    shell = args[i] if i < len(args) and "=" not in text else text.partition("=")[2]
                    self._todo.append(Simple([Word(w) for w in shell.split()] + [Word("-N")]))
                    i += 0 if "=" in text else 1
                elif option in ("-i", "-F", "--password-file", "--files-from", "--exclude-from", "--include-from"):
                    value = text.partition("=")[2] or (args[i] if i < len(args) else "")
                    i += 0 if "=" in text else 1
                    self._to.path(value, "read")
                elif option in ("-P", "-o", "-l", "-c", "-S", "--port", "--exclude", "--include") and "=" not in text:
                    i += 1
            else:
                plain.append(text)
        for k, text in enumerate(plain):
            m = re.match(r"(?:[^@/\s:]+@)?(\[[0-9a-fA-F:]+\]|[^/\s:@]+)::?(.*)\Z", text, re.DOTALL)
            if "://" in text:
                continue
            if m is not None and not re.match(r"[A-Za-z]:\\", text):
                self._to.host(hosts.host(m.group(1), 22))
            else:
                self._to.path(text, "write" if k and k == len(plain) - 1 else "read")

    def _netcat(self, args: list[str], _: Simple) -> None:
        plain: list[str] = []
        i = 0
        while i < len(args):
            text = args[i]
            i += 1
            if text.startswith("-") and len(text) > 1:
                letter = text[-1]
                if letter in "ecp" and i < len(args):
                    if letter in "ec":
                        self._text(args[i])
                    i += 1
                elif letter in "wsqixXT":
                    i += 1
            else:
                plain.append(text)
        if plain:
            port = int(plain[1]) if len(plain) > 1 and plain[1].isdecimal() and len(plain[1]) < 6 else None
            self._to.host(hosts.host(plain[0], port))

    def _socat(self, args: list[str], _: Simple) -> None:
        for text in args:
            m = re.match(r"(?i)(?:tcp|udp|openssl|ssl|sctp)[46]?(?:-connect)?:([^:,\s]+):(\d+)", text)
            if m:
                self._to.host(hosts.host(m.group(1), int(m.group(2)) if len(m.group(2)) < 6 else None))
            elif text.lower().startswith(("exec:", "system:")):
                self._text(text.partition(":")[2].split(",", 1)[0])
            elif text.lower().startswith(("open:", "file:")):
                self._to.path(text.partition(":")[2].split(",", 1)[0], "read")

    def _one_host(self, args: list[str], _: Simple) -> None:
        """ping, dig, nslookup, telnet …: the first operands that are names."""
        plain = [a for a in args if not a.startswith(("-", "+", "@"))]
        for text in plain[:2]:
            if not text.isdecimal() and text.upper() not in ("A", "AAAA", "MX", "TXT", "NS", "ANY", "CNAME", "SOA"):
                port = int(plain[1]) if len(plain) > 1 and plain[1].isdecimal() and len(plain[1]) < 6 else None
                found = hosts.loose(text)
                self._to.host(found if found is None or port is None or found.port else hosts.host(found.host, port))
                if plain[1:] and plain[1].isdecimal():
                    break
        for text in args:
            if text.startswith("@"):
                self._to.host(hosts.loose(text[1:]))

    def _client(self, args: list[str], _: Simple) -> None:
        """Database clients: -h HOST -p PORT."""
        found = {"-h": "", "-p": "", "-P": "", "--host": "", "--port": "", "-H": ""}
        for i, text in enumerate(args):
            option, equals, value = text.partition("=")
            if option in found:
                found[option] = value if equals else (args[i + 1] if i + 1 < len(args) else "")
            elif text[:2] in ("-h", "-H") and len(text) > 2 and not text.startswith("--"):
                found["-h"] = text[2:]
        name = found["-h"] or found["--host"] or found["-H"]
        port = next((p for p in (found["-P"], found["--port"], found["-p"]) if p.isdecimal() and len(p) < 6), "")
        if name and not name.startswith(("-", "/")):
            self._to.host(hosts.host(name, int(port) if port else None))

    def _git(self, args: list[str], _: Simple) -> None:
        to = self._to
        sub = _subcommand("git", args)
        at = args.index(sub) if sub in args else len(args)
        rest = args[at + 1 :]
        plain = [a for a in rest if not a.startswith("-")]
        if sub == "push" and (
            _has(rest, "f", "--force")
            or any(a.startswith(("--force-with-lease", "--mirror", "--delete", "+")) for a in rest)
        ):
            to.recursive_force = True
        if sub == "clean" and _has(rest, "f", "--force"):
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
                self._maybe_path(text, "read")
        elif sub in ("checkout", "restore"):
            for text in plain:
                self._maybe_path(text, "write")
        elif sub == "mv" and len(plain) > 1:
            for text in plain[:-1]:
                to.path(text, "delete")
            to.path(plain[-1], "write")

    def _container(self, args: list[str], command: Simple) -> None:
        to = self._to
        sub = _subcommand("docker", args)
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
                self._image(rest[plain_at])
            if inner:
                self._todo.append(Simple([Word(w) for w in inner], [], [], command.stdin, command.text))
        elif sub in ("pull", "push") and plain:
            self._image(plain[0])
        elif sub == "cp" and len(plain) == 2:
            for text, kind in ((plain[0], "read"), (plain[1], "write")):
                if ":" not in text:
                    to.path(text, kind)  # type: ignore[arg-type]
        elif sub == "login":
            for text in plain:
                to.host(hosts.loose(text))

    def _image(self, reference: str) -> None:
        registry, slash, _ = reference.partition("/")
        if slash and ("." in registry or ":" in registry or registry == "localhost"):
            self._to.host(hosts.loose(registry))

    def _kubectl(self, args: list[str], command: Simple) -> None:
        sub = _subcommand("kubectl", args)
        if sub in ("exec", "run", "debug") and "--" in args:
            rest = args[args.index("--") + 1 :]
            if rest:
                self._todo.append(Simple([Word(w) for w in rest], [], [], command.stdin, command.text))
        if sub == "cp":
            plain = [a for a in args[args.index(sub) + 1 :] if not a.startswith("-")]
            for text, kind in zip(plain[:2], ("read", "write"), strict=False):
                if ":" not in text:
                    self._to.path(text, kind)  # type: ignore[arg-type]

    def _su(self, args: list[str], _: Simple) -> None:
        for i, text in enumerate(args):
            if text in ("-c", "--command") and i + 1 < len(args):
                self._text(args[i + 1])
            elif text.startswith("--command="):
                self._text(text[10:])

    def _detached(self, args: list[str], _: Simple) -> None:
        """tmux, screen: a session that goes on by itself, and the command in it."""
        if any(a in ("-d", "-dm", "-dmS", "new", "new-session", "new-window", "send-keys") for a in args):
            self._to.background = True
        for text in args:
            if " " in text:
                self._text(text)

    def _script(self, args: list[str], _: Simple) -> None:
        for i, text in enumerate(args):
            if text in ("-c", "--command") and i + 1 < len(args):
                self._text(args[i + 1])

    def _later(self, _: list[str], command: Simple) -> None:
        """at, batch, crontab -: what comes on standard input runs later."""
        text = _stdin_text(command)
        if text:
            self._text(text)

    def _sed(self, args: list[str], _: Simple) -> None:
        if any(re.match(r"-[nErzs]*i|--in-place", a) for a in args):
            plain = [a for a in args if not a.startswith("-")]
            for text in plain[0 if _has(args, "e", "--expression") else 1 :]:
                self._to.path(text, "write")

    def _awk(self, args: list[str], _: Simple) -> None:
        for text in args:
            if "system(" in text or "getline" in text:
                self._code(text)

    def _cloud_copy(self, args: list[str], _: Simple) -> None:
        plain = [a for a in args if not a.startswith("-")]
        for k, text in enumerate(plain[2:]):
            if "://" not in text:
                self._maybe_path(text, "write" if k else "read")

    def _apply_patch(self, args: list[str], command: Simple) -> None:
        from services.capture.facts.patches import read_patch

        text = _stdin_text(command) or (args[0] if args else "")
        read_patch(self._to, text)


_ANY = Spec(None)
_CURL_VALUED: dict[str, str | None] = {
    **dict.fromkeys(
        words(
            "-H -A -e -u -x -X -m -r -w -y -Y -z -C -P -Q -t --header --user-agent --referer --user "
            "--proxy-user --request --max-time --range --write-out --connect-timeout --retry "
            "--retry-delay --resolve --interface --limit-rate --cert-type --ciphers --oauth2-bearer "
            "--aws-sigv4 --form-string --data-raw --max-redirs --retry-max-time --key-type --pass "
            "--proto --url-query"
        )
    ),
    **dict.fromkeys(
        ["-d", "--data", "--data-binary", "--data-ascii", "--data-urlencode", "--json", "-F", "--form"], "@"
    ),
    **dict.fromkeys(
        words(
            "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --output-dir"
        ),
        "write",
    ),
    **dict.fromkeys(
        words(
            "-T --upload-file -K --config -E --cert --key --cacert --netrc-file -b --cookie --capath"
        ),
        "read",
    ),
    **dict.fromkeys(
        ["-x", "--proxy", "--url", "--preproxy", "--socks5", "--socks5-hostname", "--doh-url", "--connect-to"], "host"
    ),
}
_WGET_VALUED: dict[str, str | None] = {
    **dict.fromkeys(
        words(
            "-U -t -T -e -w -l -A -R -D -X -I --header --user --password --user-agent --tries "
            "--timeout --post-data --method --body-data"
        )
    ),
    **dict.fromkeys(
        ["-O", "--output-document", "-P", "--directory-prefix", "-o", "-a", "--output-file", "--append-output"], "write"
    ),
    **dict.fromkeys(
        words(
            "-i --input-file --post-file --body-file --load-cookies --certificate --private-key "
            "--ca-certificate"
        ),
        "read",
    ),
}
_DOCKER_VALUED = frozenset(
    words(
        "-v --volume -e --env -p --publish --name -w --workdir -u --user --network --net --mount "
        "--env-file -f --file -t --tag -h --hostname --entrypoint -m --memory --cpus --label -l "
        "--add-host --device --cap-add --cap-drop --security-opt --platform --build-arg --target "
        "--restart --gpus --ipc --pid --shm-size --ulimit --tmpfs --volumes-from --dns --log-driver"
    )
)
_HANDLERS = {
    "rm": Interpreter._rm,
    "find": Interpreter._find,
    "fd": Interpreter._find,
    "dd": Interpreter._dd,
    "tar": Interpreter._tar,
    "bsdtar": Interpreter._tar,
    "curl": Interpreter._curl,
    "wget": Interpreter._wget,
    "ssh": Interpreter._ssh,
    "mosh": Interpreter._ssh,
    "scp": Interpreter._copy_remote,
    "rsync": Interpreter._copy_remote,
    "sftp": Interpreter._copy_remote,
    "nc": Interpreter._netcat,
    "ncat": Interpreter._netcat,
    "netcat": Interpreter._netcat,
    "socat": Interpreter._socat,
    **dict.fromkeys(
        words(
            "ping ping6 dig nslookup host telnet traceroute tracepath whois nmap mtr ftp lftp"
        ),
        Interpreter._one_host,
    ),
    **dict.fromkeys(["http", "https", "xh"], Interpreter._one_host),
    **dict.fromkeys(
        words(
            "psql mysql mysqldump mariadb mongo mongosh redis-cli pg_dump pg_restore "
            "clickhouse-client sqlcmd cqlsh influx"
        ),
        Interpreter._client,
    ),
    "git": Interpreter._git,
    "docker": Interpreter._container,
    "podman": Interpreter._container,
    "nerdctl": Interpreter._container,
    "kubectl": Interpreter._kubectl,
    "oc": Interpreter._kubectl,
    "su": Interpreter._su,
    "runuser": Interpreter._su,
    "tmux": Interpreter._detached,
    "screen": Interpreter._detached,
    "script": Interpreter._script,
    "at": Interpreter._later,
    "batch": Interpreter._later,
    "crontab": Interpreter._later,
    "sed": Interpreter._sed,
    "awk": Interpreter._awk,
    "gawk": Interpreter._awk,
    "aws": Interpreter._cloud_copy,
    "gsutil": Interpreter._cloud_copy,
    "apply_patch": Interpreter._apply_patch,
    "applypatch": Interpreter._apply_patch,
}


# Helpers over arguments


def _wrapped_at(name: str, words: list[Word]) -> int:
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


def _unwrapped(command: Simple) -> list[Word]:
    """The words of what a command in the end runs, behind sudo, env and the like."""
    words = command.argv
    for _ in range(8):
        if not words:
            break
        name = posixpath.basename(words[0].text)
        if name not in WRAPPERS:
            break
        words = words[_wrapped_at(name, words) :]
    return words


def _name(command: Simple) -> str:
    words = _unwrapped(command)
    return posixpath.basename(words[0].text) if words else ""


def _moved(cwd: str | None, target: str) -> str | None:
    if target == "-" or "$" in target:
        return None
    if target.startswith(("/", "~")) or cwd:
        return posixpath.normpath(target if target.startswith(("/", "~")) else f"{cwd}/{target}")
    return None


def _has(args: list[str], letters: str, long: str) -> bool:
    """Whether an option is set, in any cluster, short or long."""
    for text in args:
        if text == "--":
            return False
        if text == long or (text.startswith("-") and not text.startswith("--") and any(c in text[1:] for c in letters)):
            return True
    return False


def _subcommand(name: str, args: list[str]) -> str | None:
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


def _flags(name: str, args: list[str]) -> list[str]:
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


def _package(text: str) -> str:
    """The name without version, extras or credentials: `requests[socks]==2` → requests, `@s/x@1` → @s/x."""
    if "://" in text:
        return re.sub(r"://[^/@]*@", "://", text)
    if text.startswith("@"):
        return "@" + text[1:].partition("@")[0]
    return re.split(r"[=<>!~@\[;: ]", text, maxsplit=1)[0] or text


def _chain(command: Simple) -> Iterator[Simple]:
    """What feeds a command, nearest first."""
    for _ in range(32):
        if command.stdin is None:
            return
        command = command.stdin
        yield command


def _fetches(word: Word) -> bool:
    """Whether a word is made from what a network command prints."""
    pending = list(word.inner)
    for _ in range(256):
        if not pending:
            return False
        command = pending.pop()
        if _name(command) in FETCHERS:
            return True
        for inner in command.argv:
            pending += inner.inner
    return False


def _fetches_any(words: list[Word]) -> bool:
    return any(_fetches(w) for w in words)


def _stdin_text(command: Simple) -> str | None:
    """The literal text on a command's standard input, through echo, printf, cat and decoders; None if it is not
    known."""
    if command.text is not None:
        return command.text
    decode: list[str] = []
    for upstream in _chain(command):
        words = _unwrapped(upstream)
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
