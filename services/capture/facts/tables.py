"""What is known of common commands, as data: which arguments are paths and how they are used, what wraps what, who
installs."""

from __future__ import annotations

from typing import NamedTuple

from schemas.facts import PathKind
from services.capture.words import words


class Spec(NamedTuple):
    """How a command uses its arguments.

    `operands`: use of plain arguments (None: only if they look like paths), after the first `skip` (a pattern, a
    mode); `last`: use of the last one where it differs. `valued`: options that take a value, and its use (None: no
    path). `unless`: options that carry what `skip` would skip.
    """

    operands: PathKind | None
    last: PathKind | None = None
    skip: int = 0
    valued: dict[str, PathKind | None] = {}  # noqa: RUF012
    unless: frozenset[str] = frozenset()


def _values(names: str, **used: PathKind) -> dict[str, PathKind | None]:
    found: dict[str, PathKind | None] = dict.fromkeys(names.split())
    for key, use in used.items():
        found["-" + key if len(key) == 1 else "--" + key.replace("_", "-")] = use
    return found


SPECS: dict[str, Spec] = {
    **dict.fromkeys(
        words(
            "cat less more bat nl tac od xxd hexdump strings wc md5sum sha1sum sha256sum sha512sum "
            "file stat zcat bzcat xzcat gunzip sort uniq cut paste comm diff cmp column fold base64 "
            "base32 view ls tree du realpath readlink source . vimdiff gzip bzip2 xz zstd rev pbcopy "
            "xclip enscript lpr iconv jsonlint yamllint shellcheck open xdg-open lsattr getfacl cksum "
            "split"
        ),
        Spec(
            "read",
            valued=_values(
                "-d -f -k -t -s -w -c -b --delimiter --fields --key -I -L --ignore", o="write", output="write"
            ),
        ),
    ),
    **dict.fromkeys(["head", "tail"], Spec("read", valued=_values("-n -c --lines --bytes -s"))),
    **dict.fromkeys(
        ["grep", "egrep", "fgrep", "rg", "zgrep", "ag", "ack"],
        Spec(
            "read",
            skip=1,
            valued=_values(
                "-e -A -B -C -m -g -t -T -j --include --exclude --exclude-dir --regexp --context --glob --type",
                f="read",
                file="read",
            ),
            unless=frozenset(("-e", "-f", "--regexp", "--file")),
        ),
    ),
    "sed": Spec(
        "read",
        skip=1,
        valued=_values("-e --expression -l", f="read", file="read"),
        unless=frozenset(("-e", "-f", "--expression")),
    ),
    **dict.fromkeys(
        ["awk", "gawk", "mawk"],
        Spec("read", skip=1, valued=_values("-F -v", f="read", file="read"), unless=frozenset(("-f",))),
    ),
    **dict.fromkeys(
        ["jq", "yq"],
        Spec(
            "read",
            skip=1,
            valued=_values("--arg --argjson --indent", f="read", from_file="read"),
            unless=frozenset(("-f", "--from-file")),
        ),
    ),
    "cp": Spec("read", last="write", valued=_values("-S --suffix", t="write", target_directory="write")),
    "install": Spec("read", last="write", valued=_values("-m -o -g --mode --owner --group", t="write")),
    "mv": Spec("delete", last="write", valued=_values("-S --suffix", t="write", target_directory="write")),
    "ln": Spec("read", last="write", valued=_values("-S", t="write")),
    **dict.fromkeys(
        ["rm", "unlink", "shred", "rmdir", "trash", "srm", "wipe"],
        Spec("delete", valued=_values("-n -s --iterations --size")),
    ),
    **dict.fromkeys(
        ["tee", "touch", "mkdir", "mkfifo", "sponge", "vi", "vim", "nano", "emacs"],
        Spec("write", valued=_values("-m -d -t --mode --date -r")),
    ),
    "truncate": Spec("write", valued=_values("-s --size -r")),
    **dict.fromkeys(
        ["chmod", "chown", "chgrp", "chattr", "setfacl"],
        Spec("write", skip=1, valued=_values("-m -x", reference="read")),
    ),
    **dict.fromkeys(
        ["mkfs", "mkfs.ext4", "mkfs.ext3", "mkfs.xfs", "mkfs.btrfs", "mkswap", "wipefs", "fdisk", "parted", "sgdisk"],
        Spec("write", valued=_values("-t -L -n")),
    ),
    "mount": Spec("read", last="write", valued=_values("-t -o")),
    "unzip": Spec("read", valued=_values("-x -P", d="write")),
    "zip": Spec("read", valued=_values("-x -i -P")),
    **dict.fromkeys(["7z", "7za", "rar", "unrar"], Spec("read", skip=1)),
    "crontab": Spec("read", valued=_values("-u")),
    "patch": Spec("write", valued=_values("-p", i="read", input="read", d="write", o="write")),
    "openssl": Spec(
        None,
        skip=1,
        valued={"-passin": None, "-subj": None, "-in": "read", "-out": "write", "-key": "read", "-inkey": "read"},
    ),
    **dict.fromkeys(
        ["gpg", "gpg2"],
        Spec("read", valued=_values("-r -u --recipient --local-user --passphrase", o="write", output="write")),
    ),
    "age": Spec("read", valued=_values("-r", o="write", i="read")),
    "psql": Spec(None, skip=99, valued=_values("-h -p -U -d -c -v", f="read", o="write")),
    "make": Spec(None, skip=99, valued=_values("-j", f="read", C="read")),
    "echo": Spec(None, skip=9999),
    "printf": Spec(None, skip=9999),
    "which": Spec(None, skip=99),
    "export": Spec(None, skip=99),
    "kill": Spec(None, skip=99),
    "sleep": Spec(None, skip=99),
    "ssh-keygen": Spec(None, valued=_values("-t -b -C -N", f="write")),
    "ssh-add": Spec("read"),
    "ssh-copy-id": Spec(None, valued=_values("-p", i="read")),
    "kubectl": Spec(
        None, valued=_values("-n -o -l --namespace --context", f="read", kubeconfig="read", filename="read", k="read")
    ),
    "helm": Spec(None, valued=_values("-n --namespace", f="read", values="read", kubeconfig="read")),
    "terraform": Spec(None, valued=_values("")),
    "ansible-playbook": Spec("read", valued=_values("-e -l", i="read", vault_password_file="read")),
    "gcc": Spec("read", valued=_values("-std -D", o="write")),
    "sqlite3": Spec("write", skip=0),
}

# Options of a wrapper that take a value, and how many plain arguments stand before the command it runs.
WRAPPERS: dict[str, tuple[frozenset[str], int]] = {
    name: (frozenset(options.split()), before)
    for name, options, before in (
        ("sudo", "-u -g -h -p -C -r -t -T -U -D -R --user --group --host --prompt --chdir", 0),
        ("doas", "-u -C", 0),
        ("pkexec", "-u --user", 0),
        ("run0", "-u --user", 0),
        ("env", "-u -C --unset --chdir", 0),
        ("nohup", "", 0),
        ("time", "-f -o", 0),
        ("nice", "-n --adjustment", 0),
        ("ionice", "-c -n -p", 0),
        ("timeout", "-s -k --signal --kill-after", 1),
        ("gtimeout", "-s -k", 1),
        ("stdbuf", "-i -o -e", 0),
        ("setsid", "", 0),
        ("command", "", 0),
        ("builtin", "", 0),
        ("exec", "-a", 0),
        ("chroot", "--userspec --groups", 1),
        ("strace", "-e -o -p -s -u", 0),
        ("ltrace", "-e -o", 0),
        ("xargs", "-I -n -P -L -d -a -s -E --max-args --max-procs --replace --delimiter --arg-file", 0),
        ("watch", "-n --interval", 0),
        ("caffeinate", "-t -w", 0),
        ("unbuffer", "", 0),
        ("proxychains", "-f", 0),
        ("proxychains4", "-f", 0),
        ("torsocks", "", 0),
        ("torify", "", 0),
        ("taskset", "", 1),
        ("numactl", "-N -m -C", 0),
        ("flock", "-w -E -c", 1),
        ("systemd-run", "-p -u --unit --property --uid", 0),
        ("systemd-inhibit", "", 0),
        ("busybox", "", 0),
        ("toybox", "", 0),
        ("rlwrap", "", 0),
        ("coproc", "", 0),
        ("parallel", "-j --jobs -a", 0),
        ("dbus-run-session", "", 0),
        ("xvfb-run", "-s -n", 0),
        ("!", "", 0),
    )
}
PRIVILEGED = frozenset(("sudo", "doas", "su", "pkexec", "run0", "sudoedit", "runuser"))
DETACHING = frozenset(("nohup", "setsid", "disown", "at", "batch", "daemonize", "systemd-run"))
SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "ash", "fish", "rbash", "csh", "tcsh"])
# Interpreters that run a program given on standard input, and the options that give one on the command line.
INTERPRETERS: dict[str, frozenset[str]] = {
    name: frozenset(options.split())
    for name, options in (
        ("python", "-c"),
        ("python3", "-c"),
        ("python2", "-c"),
        ("pypy3", "-c"),
        ("node", "-e --eval -p --print"),
        ("nodejs", "-e --eval"),
        ("bun", "-e"),
        ("deno", "eval"),
        ("perl", "-e -E"),
        ("ruby", "-e"),
        ("php", "-r"),
        ("lua", "-e"),
        ("osascript", "-e"),
        ("pwsh", "-c -Command"),
        ("powershell", "-c -Command"),
    )
}
FETCHERS = frozenset(
    words("curl wget fetch http https xh aria2c lynx w3m nc ncat netcat socat ftp lftp scp sftp axel httpie")
)
DECODERS = frozenset(("base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"))

# Commands with a sub-command, the options before it that take a value, and how many words it has.
SUBCOMMANDS: dict[str, tuple[frozenset[str], int]] = {
    name: (frozenset(options.split()), words)
    for name, options, words in (
        ("git", "-C -c --git-dir --work-tree --namespace --exec-path", 1),
        ("docker", "-H -c -l --host --context --config --log-level", 1),
        ("podman", "--url --connection", 1),
        ("nerdctl", "-n --namespace", 1),
        ("docker-compose", "-f -p --file --project-name", 1),
        ("kubectl", "-n -s --namespace --context --kubeconfig --server --cluster --user --token --as", 1),
        ("oc", "-n --namespace --context", 1),
        ("helm", "-n --namespace --kube-context --kubeconfig", 1),
        ("npm", "--prefix -w --workspace", 1),
        ("pnpm", "-C --dir --filter", 1),
        ("yarn", "--cwd", 1),
        ("bun", "--cwd", 1),
        ("deno", "", 1),
        ("pip", "--python --proxy --log", 1),
        ("pip3", "--python --proxy --log", 1),
        ("pipx", "", 1),
        ("uv", "--directory --project --python -p", 1),
        ("poetry", "-C -P", 1),
        ("conda", "-n -p", 1),
        ("mamba", "-n -p", 1),
        ("cargo", "--manifest-path --color", 1),
        ("go", "-C", 1),
        ("gem", "", 1),
        ("bundle", "", 1),
        ("apt", "-o -c -t", 1),
        ("apt-get", "-o -c -t", 1),
        ("dnf", "", 1),
        ("yum", "", 1),
        ("apk", "", 1),
        ("brew", "", 1),
        ("snap", "", 1),
        ("flatpak", "", 1),
        ("systemctl", "-H -M", 1),
        ("service", "", 1),
        ("aws", "--profile --region --output --endpoint-url", 2),
        ("gcloud", "--project --account", 2),
        ("az", "--subscription", 2),
        ("gh", "-R --repo", 2),
        ("glab", "-R", 2),
        ("terraform", "", 1),
        ("tofu", "", 1),
        ("pulumi", "", 1),
        ("vault", "", 1),
        ("heroku", "", 1),
        ("vercel", "", 1),
        ("fly", "", 1),
        ("make", "-C -f -j", 1),
        ("openssl", "", 1),
        ("claude", "", 1),
        ("codex", "", 1),
        ("openclaw", "", 1),
        ("hermes", "", 1),
        ("tmux", "-L -S", 1),
        ("svn", "", 1),
        ("hg", "-R", 1),
        ("ip", "", 1),
        ("nmcli", "", 1),
        ("launchctl", "", 1),
        ("security", "", 1),
        ("redis-cli", "-h -p -a -n -u", 1),
    )
}

# manager → (sub-commands that install, options that take a value). The empty sub-command: the command itself installs.
INSTALLERS: dict[str, tuple[str, frozenset[str], frozenset[str]]] = {
    name: (manager, frozenset(subs.split()), frozenset(options.split()))
    for name, manager, subs, options in (
        (
            "pip",
            "pip",
            "install download",
            "-r -c -i -t -e --requirement --constraint --index-url --extra-index-url --target --prefix -f",
        ),
        (
            "pip3",
            "pip",
            "install download",
            "-r -c -i -t -e --requirement --constraint --index-url --extra-index-url --target --prefix -f",
        ),
        ("pipx", "pip", "install run", "--python --spec"),
        ("uv", "pip", "add", "--index --index-url --group --extra --optional -p --python"),
        ("poetry", "pip", "add", "-G --group -E --source"),
        ("conda", "conda", "install create", "-n -c -p --name --channel"),
        ("mamba", "conda", "install create", "-n -c -p"),
        ("npm", "npm", "install i add ci-package", "--registry --prefix -w --workspace --tag"),
        ("pnpm", "npm", "add install i dlx", "--registry -C --dir --filter"),
        ("yarn", "npm", "add dlx", "--registry --cwd"),
        ("bun", "npm", "add install i x", "--registry --cwd"),
        ("cargo", "cargo", "install add", "--version --git --branch --features -F --path --root --registry"),
        ("go", "go", "get install", "-C -modfile"),
        ("gem", "gem", "install", "-v --version -s --source -i"),
        ("apt", "apt", "install", "-o -t -c"),
        ("apt-get", "apt", "install", "-o -t -c"),
        ("dnf", "dnf", "install", ""),
        ("yum", "yum", "install", ""),
        ("apk", "apk", "add", "-t --virtual -X --repository"),
        ("brew", "brew", "install", ""),
        ("snap", "snap", "install", "--channel"),
    )
}
