"""`agenttrace proxy stdio` from its arguments to the running server, importing next to nothing before that.

A client waits for its servers: the server is started first, the rest of the forwarder is imported while it starts.
"""

from __future__ import annotations

import os
import resource
import signal

from services.mcp_proxy.stdio import supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn


class Options:
    """What to run, and what to hand to the observer."""

    __slots__ = ("command", "server", "sink", "timeout_ms")

    def __init__(
        self, server: str, command: Sequence[str], sink: str | None = None, timeout_ms: int | None = None
    ) -> None:
        self.server = server
        self.command = tuple(command)
        self.sink = sink
        self.timeout_ms = timeout_ms

    def for_observer(self) -> list[str]:
        """Arguments of `services.mcp_proxy.observe`."""
        found = ["--sink", self.sink] if self.sink else []
        return [*found, "--timeout-ms", str(self.timeout_ms)] if self.timeout_ms is not None else found


class Child:
    """The server as the forwarder holds it: ends of its pipes, and of those to and from the supervisor."""

    __slots__ = ("orders", "reports", "stderr", "stdin", "stdout", "supervisor")

    def __init__(self, *, supervisor: int, stdin: int, stdout: int, stderr: int, orders: int, reports: int) -> None:
        self.supervisor = supervisor
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.orders = orders
        self.reports = reports


def split_arguments(text: str) -> list[str]:
    """The value of --real-args: arguments with commas between them."""
    return text.split(",") if text else []


def parse(words: Sequence[str]) -> Options | None:
    """The options of a plain call; None for everything else (--help, mistakes), which the command line proper explains."""
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name not in ("--server", "--sink", "--timeout-ms", "--real-command", "--real-args"):
            return None
        if not equals:
            if not rest:
                return None
            value = rest.pop(0)
        values[name] = value
    if "--real-command" in values and not rest:
        rest = [values["--real-command"], *split_arguments(values.get("--real-args", ""))]
    elif "--real-command" in values or "--real-args" in values:
        return None
    sink, timeout = values.get("--sink"), values.get("--timeout-ms")
    if not values.get("--server") or not rest or not rest[0]:
        return None
    if (sink is not None and not is_sink(sink)) or (timeout is not None and not (timeout.isdecimal() and int(timeout))):
        return None
    return Options(values["--server"], rest, sink, None if timeout is None else int(timeout))


def is_sink(text: str) -> bool:
    """Whether it is `jsonl:FILE`."""
    return text.startswith("jsonl:") and len(text) > len("jsonl:")


def run(options: Options) -> NoReturn:
    """Run the server to its end, then end as it did: with its exit code, or by the signal that killed it."""
    for descriptor in (0, 1, 2):
        _require_open(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how the server ended
    # From here to the handlers of the event loop no signal to forward may be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.FORWARDED)
    try:
        child = start(options.command, mask)
    except OSError as error:
        os.write(2, f"agenttrace: {options.server}: the server cannot be started: {error.strerror}\n".encode())
        os._exit(os.EX_OSERR)
    from services.mcp_proxy.stdio.forwarder import forward

    end(forward(options, child))


def start(command: Sequence[str], mask: Iterable[int]) -> Child:
    """Fork the supervisor, which starts the command. Raises OSError where the system has no process or pipe left."""
    supervisor.adopt_orphans()
    server_in, stdin = os.pipe()
    stdout, server_out = os.pipe()
    stderr, server_err = os.pipe()
    orders_in, orders = os.pipe()
    reports, reports_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (stdin, stdout, stderr, orders, reports):
            os.close(descriptor)
        supervisor.supervise(command, (server_in, server_out, server_err), orders_in, reports_out, mask)
    for descriptor in (server_in, server_out, server_err, orders_in, reports_out):
        os.close(descriptor)
    return Child(supervisor=pid, stdin=stdin, stdout=stdout, stderr=stderr, orders=orders, reports=reports)


def end(status: int) -> NoReturn:
    """End with this wait status, at once."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the server's core is the one to look at
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _require_open(descriptor: int) -> None:
    """A standard descriptor that the client closed would become one of our pipes."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(descriptor, True)
