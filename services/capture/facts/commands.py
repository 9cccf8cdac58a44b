"""What a simple command does: follows wrappers to the command they run and reads paths, hosts and installs from
its arguments."""

from __future__ import annotations

import posixpath
import re

from schemas.facts import PathKind
from services.capture.facts import hosts, network, tools
from services.capture.facts.argv import (
    chain,
    command_name,
    fetches,
    fetches_any,
    flags,
    moved,
    stdin_text,
    subcommand,
    wrapped_at,
)
from services.capture.facts.collect import Collector
from services.capture.facts.packages import install
from services.capture.facts.plain import plain
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
    WRAPPERS,
    Spec,
)
from services.capture.words import words

MAX_COMMANDS = 5000
MAX_TEXTS = 64
MAX_WORDS = 1000
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/", "/opt/homebrew/bin/")
_PATHLIKE = re.compile(
    r"(?:~|\.{1,2})?/[^\s\x00]*\Z|[\w.\-]+(?:/[\w.*\-]+)+\Z|\.[A-Za-z][\w.\-]*\Z|id_(?:rsa|dsa|ecdsa|ed25519)(?:\.pub)?\Z|[\w\-]+\.(?:pem|key|p12|pfx|env|json|ya?ml"
    r"|toml|ini|cfg|conf|sh|py|js|ts|sql|db|sqlite3?|log|txt|md|csv|tar|tgz|gz|zip|crt|kubeconfig)\Z|kubeconfig\Z"
)
_CODE_PATH = re.compile(r"""['"]((?:/|~/|\.{1,2}/)[^'"\n\x00]{1,400}|\.env[\w.]*|[\w.\-/]*id_(?:rsa|ed25519))['"]""")
_CODE_SHELL = re.compile(
    r"""(?:\bsystem|\bpopen|\brun|\bcall|check_output|check_call|getoutput|\bexec|execSync|spawn(?:Sync)?|\bterminal|shell_exec|Popen)\s*\(\s*[rfb]{0,2}(["'])((?:\\.|(?!\1)[^\\\n]){1,4000})\1""",
    re.DOTALL,
)


class Interpreter:
    """Reads the commands of one call into a Collector. Work is a list, never recursion; texts found inside are
    read in turn."""

    def __init__(self, collector: Collector) -> None:
        self.to = collector
        self._variables: dict[str, str] = {}
        self.todo: list[Simple] = []
        self._texts = MAX_TEXTS
        self._left = MAX_COMMANDS

    def shell(self, text: str) -> None:
        """A shell text."""
        self.text(text)
        self._drain()

    def argv(self, words: list[str]) -> None:
        """One command as an argument list."""
        self.todo.append(Simple([Word(w) for w in words]))
        self._drain()

    def code(self, text: str) -> None:
        """A program in some other language: URLs, quoted paths, and what it hands to a shell."""
        self.read_code(text)
        self._drain()

    def text(self, text: str, feed: Simple | None = None) -> None:
        """Queues the commands of a shell text; the first of them has the standard input of `feed`."""
        self._texts -= 1
        if self._texts < 0:
            self.to.truncated = True
            return
        commands = plain(text)
        if commands is None:
            parsed = parse(text, self._variables)
            self.to.truncated |= parsed.truncated
            commands = parsed.commands
        if feed is not None and commands and commands[0].stdin is None and commands[0].text is None:
            commands[0].stdin, commands[0].text = feed.stdin, feed.text
        self.todo.extend(reversed(commands))

    def _drain(self) -> None:
        while self.todo:
            self._left -= 1
            if self._left < 0:
                self.to.truncated = True
                self.todo.clear()
                return
            self._command(self.todo.pop())

    # One command

    def _command(self, command: Simple) -> None:
        to = self.to
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
        own_program = "/" in first and not first.startswith(_SYSTEM_FOLDERS) and "://" not in first
        if own_program and to.path(first, "exec") in to.fetched:
            to.pipe_to_shell = True
        for text in args:
            if "://" in text or "/dev/" in text:
                for found in hosts.in_text(text):
                    to.host(found)
        shown = "python" if name.startswith("python") and name[6:].replace(".", "").isdecimal() else name
        sub = subcommand(shown, args)
        own = args
        if shown in WRAPPERS:
            own = args[: wrapped_at(shown, words) - 1]
        elif shown == "find" and "-exec" in args:
            own = args[: args.index("-exec") + 1]
        to.command(name, sub, flags(shown, own))
        if name in PRIVILEGED:
            to.sudo = True
        if name in DETACHING:
            to.background = True
        self._inside(shown, words, args, command, sub)

    def _redirect(self, redirect: Redirect) -> None:
        target = redirect.target.text
        for found in hosts.in_text(target):
            self.to.host(found)
        if target.isdecimal() or redirect.target.inner:
            return
        self.to.path(target, "read" if redirect.op in ("<", "<&") else "write")

    def _inside(self, name: str, words: list[Word], args: list[str], command: Simple, sub: str | None) -> None:
        to = self.to
        if name in ("cd", "pushd"):
            target = next((a for a in args if not a.startswith("-")), "~")
            to.cwd = moved(to.cwd, target)
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
            if fetches_any(words[1:]) and name == "eval":
                to.pipe_to_shell = True
            self.text(
                " ".join(args)
                if name == "eval"
                else "; ".join(a.partition("=")[2] if name == "alias" else a for a in args[:1])
            )
            return
        if name in ("source", "."):
            if fetches_any(words[1:2]):
                to.pipe_to_shell = True
            elif args:
                to.path(args[0], "exec")
            return
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, args, command)
        if name in INSTALLERS or name in ("npx", "bunx", "uvx", "pacman"):
            install(self.to, name, args, sub)
        spec = SPECS.get(name)
        if spec is not None or handler is None:
            self._operands(spec or _ANY, args)

    # Commands that run commands

    def _wrapper(self, name: str, words: list[Word], command: Simple) -> bool:
        """Queues the command a wrapper runs. True when the rest of the arguments belongs to it."""
        at = wrapped_at(name, words)
        for i, word in enumerate(words[1:at], 1):
            following = words[i + 1] if i + 1 < len(words) else None
            if following is None:
                break
            if (name == "flock" and word.text == "-c") or (name == "env" and word.text in ("-S", "--split-string")):
                self.text(" ".join(w.text for w in words[i + 1 :]))
                return True
            if name == "xargs" and word.text == "-a":
                self.to.path(following.text, "read")
        rest = words[at:]
        if not rest:
            return name != "xargs"
        if name in ("watch", "parallel") and " " in rest[0].text:
            self.text(" ".join(w.text for w in rest))
        else:
            self.todo.append(Simple(rest, [], [], command.stdin, command.text, command.background))
        return True

    def _shell(self, words: list[Word], args: list[str], command: Simple) -> None:
        to = self.to
        for i, text in enumerate(args):
            if text == "--":
                args, words = args[i + 1 :], words[i + 1 :]
                break
            if text.startswith("-") and len(text) > 1:
                if not text.startswith("--") and "c" in text:
                    if i + 1 < len(args):
                        if fetches(words[i + 2]):
                            to.pipe_to_shell = True
                        self.text(args[i + 1], command)
                    return
                if "s" in text and not text.startswith("--"):
                    args = []
                    break
                if text in ("-o", "-O", "--rcfile", "--init-file", "+O"):
                    continue
            elif i and args[i - 1] in ("-o", "-O", "--rcfile", "--init-file"):
                continue
            else:
                if fetches(words[i + 1]) or (text and not words[i + 1].inner and to.path(text, "exec") in to.fetched):
                    to.pipe_to_shell = True
                return
        self._program(command, shell=True)

    def _program(self, command: Simple, *, shell: bool) -> None:
        """A program that comes on standard input."""
        for upstream in chain(command):
            name = command_name(upstream)
            if name in FETCHERS or name in DECODERS or fetches_any(upstream.argv):
                self.to.pipe_to_shell = True
        text = stdin_text(command)
        if text:
            if shell:
                self.text(text)
            else:
                self.read_code(text)

    def _interpreter(self, name: str, words: list[Word], args: list[str], command: Simple) -> None:
        to = self.to
        inline = INTERPRETERS[name]
        if name.startswith("python") and "-m" in args:
            at = args.index("-m")
            if all(a.startswith("-") for a in args[:at]):
                self.todo.append(Simple(words[at + 2 :], [], [], command.stdin, command.text))
                return
        for i, text in enumerate(args):
            if text in inline or (
                len(text) > 2 and not text.startswith("--") and text[0] == "-" and "-" + text[-1] in inline
            ):
                if i + 1 < len(args):
                    if fetches(words[i + 2]):
                        to.pipe_to_shell = True
                    self.read_code(args[i + 1])
                    for rest in args[i + 2 :]:
                        self.maybe_path(rest, "read")
                return
            if text == "-":
                break
            if not text.startswith("-"):
                if words[i + 1].inner:
                    to.pipe_to_shell |= fetches(words[i + 1])
                elif name in ("bun", "deno") and not _PATHLIKE.match(text):
                    install(self.to, name, args, subcommand(name, args))
                elif to.path(text, "exec") in to.fetched:
                    to.pipe_to_shell = True
                for rest in args[i + 1 :]:
                    self.maybe_path(rest, "read")
                return
        if args and args[-1] not in ("-",) and all(a in ("-V", "--version", "-h", "--help", "-v") for a in args):
            return
        self._program(command, shell=False)

    def read_code(self, text: str) -> None:
        if len(text) > 256 * 1024:
            self.to.truncated = True
            text = text[: 192 * 1024] + text[-64 * 1024 :]
        for found in hosts.in_text(text):
            self.to.host(found)
        for m in _CODE_PATH.finditer(text):
            if "://" not in m.group(1):
                self.to.path(m.group(1), "read")
        for m in _CODE_SHELL.finditer(text):
            self.text(m.group(2).replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'"))

    # Arguments

    def maybe_path(self, text: str, kind: PathKind) -> None:
        if "=" in text and text.startswith("-"):
            text = text.partition("=")[2]
        if "://" not in text and _PATHLIKE.match(text):
            self.to.path(text, kind)

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
                        self.to.path(value, use)
                        given_last |= use == spec.last
                elif equals:
                    self.maybe_path(value, "read")
                elif text[1] != "-" and len(text) > 3 and "/" in text:
                    self.maybe_path(text[2:], "read")
            else:
                plain.append(text)
        plain = plain[skip:]
        if spec.operands is None:
            for text in plain:
                self.maybe_path(text, "read")
            return
        last = plain.pop() if spec.last is not None and len(plain) > 1 and not given_last else None
        for text in plain:
            if "://" not in text:
                self.to.path(text, spec.operands)
        if last is not None and spec.last is not None:
            self.to.path(last, spec.last)


_ANY = Spec(None)
_HANDLERS = {
    "rm": tools.rm,
    "find": tools.find,
    "fd": tools.find,
    "dd": tools.dd,
    "tar": tools.tar,
    "bsdtar": tools.tar,
    "curl": network.curl,
    "wget": network.wget,
    "ssh": network.ssh,
    "mosh": network.ssh,
    "scp": network.copy_remote,
    "rsync": network.copy_remote,
    "sftp": network.copy_remote,
    "nc": network.netcat,
    "ncat": network.netcat,
    "netcat": network.netcat,
    "socat": network.socat,
    **dict.fromkeys(
        words("ping ping6 dig nslookup host telnet traceroute tracepath whois nmap mtr ftp lftp"),
        network.one_host,
    ),
    **dict.fromkeys(["http", "https", "xh"], network.one_host),
    **dict.fromkeys(
        words(
            "psql mysql mysqldump mariadb mongo mongosh redis-cli pg_dump pg_restore "
            "clickhouse-client sqlcmd cqlsh influx"
        ),
        network.client,
    ),
    "git": tools.git,
    "docker": tools.container,
    "podman": tools.container,
    "nerdctl": tools.container,
    "kubectl": tools.kubectl,
    "oc": tools.kubectl,
    "su": tools.su,
    "runuser": tools.su,
    "tmux": tools.detached,
    "screen": tools.detached,
    "script": tools.script,
    "at": tools.later,
    "batch": tools.later,
    "crontab": tools.later,
    "sed": tools.sed,
    "awk": tools.awk,
    "gawk": tools.awk,
    "aws": network.cloud_copy,
    "gsutil": network.cloud_copy,
    "apply_patch": tools.apply_patch,
    "applypatch": tools.apply_patch,
}
