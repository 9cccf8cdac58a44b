"""Commands that talk to other machines: where they connect, what they send and what they write."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from services.capture.facts import hosts
from services.capture.facts.shell import Simple, Word
from services.capture.words import words

if TYPE_CHECKING:
    from services.capture.facts.commands import Interpreter

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
        words("-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --output-dir"),
        "write",
    ),
    **dict.fromkeys(
        words("-T --upload-file -K --config -E --cert --key --cacert --netrc-file -b --cookie --capath"),
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
        words("-i --input-file --post-file --body-file --load-cookies --certificate --private-key --ca-certificate"),
        "read",
    ),
}


def curl(run: Interpreter, args: list[str], _: Simple) -> None:
    to = run.to
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
                remote_name(run, args)
        else:
            bare_url(run, text)
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


def bare_url(run: Interpreter, text: str) -> None:
    """A URL without its scheme; a lone word is more likely the value of an option not known here."""
    if "://" not in text and (text == "localhost" or any(c in text for c in ".:/")):
        run.to.host(hosts.loose(text))


def remote_name(run: Interpreter, args: list[str]) -> None:
    for text in args:
        if not text.startswith("-") and "/" in text:
            path = re.split(r"[?#]", text.partition("://")[2] or text, maxsplit=1)[0]
            name = posixpath.basename(path.partition("/")[2])
            if name:
                run.to.fetched.add(run.to.path(name, "write"))


def wget(run: Interpreter, args: list[str], _: Simple) -> None:
    to = run.to
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
            bare_url(run, text)
    if not named:
        remote_name(run, [a for a in args if "://" in a])


def ssh(run: Interpreter, args: list[str], command: Simple) -> None:
    to = run.to
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
                    run.text(re.sub(r"(?i)^proxycommand[ =]+", "", value))
            continue
        name, given = hosts.split_port(text.rpartition("@")[2])
        to.host(hosts.host(name, given or port) if "://" not in text else hosts.loose(text))
        if i < len(args):
            run.text(" ".join(args[i:]), command)
        return


def copy_remote(run: Interpreter, args: list[str], _: Simple) -> None:
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
                run.todo.append(Simple([Word(w) for w in shell.split()] + [Word("-N")]))
                i += 0 if "=" in text else 1
            elif option in ("-i", "-F", "--password-file", "--files-from", "--exclude-from", "--include-from"):
                value = text.partition("=")[2] or (args[i] if i < len(args) else "")
                i += 0 if "=" in text else 1
                run.to.path(value, "read")
            elif option in ("-P", "-o", "-l", "-c", "-S", "--port", "--exclude", "--include") and "=" not in text:
                i += 1
        else:
            plain.append(text)
    for k, text in enumerate(plain):
        m = re.match(r"(?:[^@/\s:]+@)?(\[[0-9a-fA-F:]+\]|[^/\s:@]+)::?(.*)\Z", text, re.DOTALL)
        if "://" in text:
            continue
        if m is not None and not re.match(r"[A-Za-z]:\\", text):
            run.to.host(hosts.host(m.group(1), 22))
        else:
            run.to.path(text, "write" if k and k == len(plain) - 1 else "read")


def netcat(run: Interpreter, args: list[str], _: Simple) -> None:
    plain: list[str] = []
    i = 0
    while i < len(args):
        text = args[i]
        i += 1
        if text.startswith("-") and len(text) > 1:
            letter = text[-1]
            if letter in "ecp" and i < len(args):
                if letter in "ec":
                    run.text(args[i])
                i += 1
            elif letter in "wsqixXT":
                i += 1
        else:
            plain.append(text)
    if plain:
        port = int(plain[1]) if len(plain) > 1 and plain[1].isdecimal() and len(plain[1]) < 6 else None
        run.to.host(hosts.host(plain[0], port))


def socat(run: Interpreter, args: list[str], _: Simple) -> None:
    for text in args:
        m = re.match(r"(?i)(?:tcp|udp|openssl|ssl|sctp)[46]?(?:-connect)?:([^:,\s]+):(\d+)", text)
        if m:
            run.to.host(hosts.host(m.group(1), int(m.group(2)) if len(m.group(2)) < 6 else None))
        elif text.lower().startswith(("exec:", "system:")):
            run.text(text.partition(":")[2].split(",", 1)[0])
        elif text.lower().startswith(("open:", "file:")):
            run.to.path(text.partition(":")[2].split(",", 1)[0], "read")


def one_host(run: Interpreter, args: list[str], _: Simple) -> None:
    """ping, dig, nslookup, telnet …: the first operands that are names."""
    plain = [a for a in args if not a.startswith(("-", "+", "@"))]
    for text in plain[:2]:
        if not text.isdecimal() and text.upper() not in ("A", "AAAA", "MX", "TXT", "NS", "ANY", "CNAME", "SOA"):
            port = int(plain[1]) if len(plain) > 1 and plain[1].isdecimal() and len(plain[1]) < 6 else None
            found = hosts.loose(text)
            run.to.host(found if found is None or port is None or found.port else hosts.host(found.host, port))
            if plain[1:] and plain[1].isdecimal():
                break
    for text in args:
        if text.startswith("@"):
            run.to.host(hosts.loose(text[1:]))


def client(run: Interpreter, args: list[str], _: Simple) -> None:
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
        run.to.host(hosts.host(name, int(port) if port else None))


def cloud_copy(run: Interpreter, args: list[str], _: Simple) -> None:
    plain = [a for a in args if not a.startswith("-")]
    for k, text in enumerate(plain[2:]):
        if "://" not in text:
            run.maybe_path(text, "write" if k else "read")
