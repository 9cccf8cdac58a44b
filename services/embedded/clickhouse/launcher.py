"""Runs the ClickHouse server program on the loopback, from a folder of its own."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from services.embedded.clickhouse.statement import USER, request
from services.embedded.host import LOOPBACK
from services.embedded.launcher import Launcher
from services.embedded.part import ANALYSIS_NICE, Part
from services.embedded.pidfile import write_private


class ClickHouseServer(Launcher):
    """ClickHouse on 127.0.0.1, its data under `state_dir`. Acknowledged rows survive kill -9, not a power cut.

    The password is made at the first start and kept in the folder (0600), so that a client's settings outlive
    a restart.
    """

    name = "clickhouse"

    def __init__(self, state_dir: Path, *, port: int | None = None) -> None:
        super().__init__(state_dir, port=port)
        self._password_file = self.state_dir / "password"

    @property
    def dsn(self) -> str:
        """`http://USER:PASSWORD@127.0.0.1:PORT/default`, as clickhouse-connect takes it. Holds a secret: do not log."""
        return f"http://{USER}:{self._password()}@{LOOPBACK}:{self.port}/default"

    def start(self, timeout_s: float = 30) -> None:
        """Start the server and return once it answers; see Launcher.start."""
        super().start(timeout_s)

    def _prepare(self, port: int) -> Part:
        if not self._password_file.exists():
            write_private(self._password_file, secrets.token_hex(16))
        password = self._password()
        return Part(
            self.name,
            [
                *(sys.executable, "-P", "-m", "services.embedded.clickhouse.server"),
                *("--state-dir", str(self.state_dir), "--port", str(port)),
                *("--password-file", str(self._password_file)),
            ],
            # Another server on this port would not know the password.
            ready=lambda: request(port, password, "SELECT 1", timeout_s=2) == b"1\n",
            # Merges and inserts that run are brought to an end first.
            grace_s=25,
            nice=ANALYSIS_NICE,
        )

    def _password(self) -> str:
        return self._password_file.read_text(encoding="ascii").strip()
