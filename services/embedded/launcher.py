"""What Kafka's and ClickHouse's launchers share: start and wait, stop, ports chosen at the first start and
kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from services.embedded.host import free_port, require_free
from services.embedded.part import NotReadyError, Part, PartProcess

# Another program may take a port between its choice and the server's bind.
_PORT_TRIES = 3


class Launcher(ABC):
    """A server of this machine, run from `state_dir`: by itself (`start`, `stop`, `with`) or under a
    Supervisor (`part`).

    The port is free_port()'s unless given, and stays the same for this object's later starts.
    """

    name: str

    def __init__(self, state_dir: Path, *, port: int | None = None) -> None:
        self.state_dir = Path(state_dir)
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
        """The server's pid while it was started by `start()` and runs, else None."""
        return self._process.pid if self._process is not None else None

    @abstractmethod
    def part(self) -> Part:
        """Prepare the state folder and say how the server is run. Raises UserError if that cannot be done."""

    def start(self, timeout_s: float) -> None:
        """Start the server and return once it answers.

        Raises UserError: port in use, folder not writable or in use, or not ready within `timeout_s` seconds.
        """
        if self.pid is not None:
            raise RuntimeError(f"{self.name} runs already (pid {self.pid})")
        for attempt in range(_PORT_TRIES):
            process = PartProcess(self.part(), self.state_dir)
            process.start()
            try:
                process.wait_ready(timeout_s)
            except NotReadyError as error:
                process.stop()
                if not error.port_taken or self._given_port is not None or attempt == _PORT_TRIES - 1:
                    raise
                self._port = None
                continue
            except BaseException:
                process.stop()
                raise
            self._process = process
            return

    def stop(self) -> None:
        """Stop the server in order, or with SIGKILL after its grace. Nothing happens if it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def __enter__(self) -> Self:
        self.start(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose_port(self) -> int:
        if self._port is None:
            self._port = free_port()
        else:
            require_free(self._port, self.name)
        return self._port
