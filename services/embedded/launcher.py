"""What Kafka's and ClickHouse's launchers share: the folder, the port, start and wait, stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from services.embedded.host import FolderLock, ensure_folder, free_port, require_free
from services.embedded.part import NotReadyError, Part, PartProcess
from services.embedded.pidfile import reap_all

# Another program may take a port between its choice and the server's bind.
_PORT_TRIES = 3


class Launcher(ABC):
    """A server of this machine, run from `state_dir`: by itself (`start`, `stop`, `with`) or by a Supervisor (`part`).

    The port is free_port()'s unless given, and stays the same for this object's later starts. From its first start
    to `stop` the object holds the folder.
    """

    name: str

    def __init__(self, state_dir: Path, *, port: int | None = None) -> None:
        self.state_dir = Path(state_dir).absolute()
        self._lock = FolderLock(self.state_dir)
        self._given_port = port
        self._port = port
        self._process: PartProcess | None = None

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; known from the first `part()` or `start()` on."""
        if self._port is None:
            raise RuntimeError(f"{self.name} has no port before its first start")
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs and was started by `start()`, else None."""
        return self._process.pid if self._process is not None else None

    def part(self) -> Part:
        """Prepare the folder and say how the server is run from it.

        Raises UserError: folder not writable or held by another stack, port in use.
        """
        ensure_folder(self.state_dir)
        self._lock.acquire()
        reap_all(self.state_dir)
        if self._port is None:
            self._port = free_port()
        else:
            require_free(self._port, self.name)
        return self._prepare(self._port)

    def start(self, timeout_s: float) -> None:
        """Start the server and return once it answers.

        Raises UserError as `part` does, and NotReadyError if it ends before or does not answer in `timeout_s` seconds.
        """
        if self.pid is not None:
            raise RuntimeError(f"{self.name} runs already (pid {self.pid})")
        try:
            for tries_left in reversed(range(_PORT_TRIES)):
                self._process = PartProcess(self.part(), self.state_dir)
                self._process.start()
                try:
                    self._process.wait_ready(timeout_s)
                    return
                except NotReadyError as error:
                    if not error.port_taken or self._given_port is not None or tries_left == 0:
                        raise
                    self._process.stop()
                    self._port = None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server in order, or with SIGKILL after its grace, and let go of the folder."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        self._lock.release()

    def __enter__(self) -> Self:
        self.start(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _prepare(self, port: int) -> Part:
        """Lay what the server needs into the folder, which exists and is held."""
