"""Runs several Kafka nodes as one cluster on the loopback, so that tests can kill a broker while the others serve."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from services.embedded.host import free_port
from services.embedded.kafka.broker import META, KafkaBroker, Quorum, new_cluster_id


class KafkaCluster:
    """Nodes 1 … `brokers`, each a KafkaBroker with broker and controller, in a folder of its own below `home`.

    `nodes[2].kill()`, `.stop()` and `.start()` are of one node; the ports stay the same for this object's life. Three
    replicas of everything, two of which have what is acknowledged with acks=all (a topic may say otherwise).
    """

    def __init__(self, home: Path, *, brokers: int = 3, heap_mb: int = 256) -> None:
        folders = {node: Path(home).absolute() / str(node) for node in range(1, brokers + 1)}
        ports: set[int] = set()
        while len(ports) < 2 * brokers:
            ports.add(free_port())
        quorum = Quorum(_cluster_id([*folders.values()]) or new_cluster_id(), {node: ports.pop() for node in folders})
        self.nodes = {
            node: KafkaBroker(folder, port=ports.pop(), heap_mb=heap_mb, quorum=quorum, node_id=node)
            for node, folder in folders.items()
        }

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, whether they run or not."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        """Start all nodes at once and return when each serves. Raises UserError as KafkaBroker.start does."""
        try:
            self._all(KafkaBroker.start)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all nodes that run."""
        self._all(KafkaBroker.stop)

    def _all(self, do: Callable[[KafkaBroker], None]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for done in [pool.submit(do, node) for node in self.nodes.values()]:
                done.result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _cluster_id(folders: list[Path]) -> str | None:
    """The id of the cluster that an earlier run has made in these folders."""
    for folder in folders:
        if (folder / META).exists():
            lines = (folder / META).read_text(encoding="ascii").splitlines()
            return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))
    return None
