"""The cluster of three brokers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.embedded.kafka import KafkaCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers that may be killed; each test leaves them running."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    made = KafkaCluster(folder)
    try:
        made.start()
        yield made
    finally:
        for node in made.nodes.values():
            if node.pid is not None:
                node.kill()
