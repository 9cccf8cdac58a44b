"""A worker as a process of its own, so that a test can kill it.

Arguments: bootstrap, topic prefix, HTTP port, TTL in ms, `pairs` for the operators of the tests or `all` for
ours, and seconds between checkpoints.
"""

from __future__ import annotations

import logging
import sys

from pipelines.operators import build_operators
from pipelines.pending_calls.operator import PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime.port import OperatorFactory
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.worker import run
from schemas.config import Config, Reliability
from schemas.errors import UserError
from tests.pipelines.helpers import Pairs


def factories(ttl_ms: int, operators: str = "pairs") -> tuple[OperatorFactory, ...]:
    """`pairs`: pending_calls and the operator that needs several topics. `all`: those of a real worker."""
    if operators == "all":
        return tuple(build_operators(Config(reliability=Reliability(pending_call_ttl_ms=ttl_ms))))
    return (lambda _partition: PendingCalls(Ttls(ttl_ms, ttl_ms)), Pairs)


def settings(bootstrap: str, prefix: str, *numbers: str) -> WorkerSettings:
    """Settings of a worker of one test, from its arguments."""
    port, ttl_ms, operators, checkpoint_s = numbers
    return WorkerSettings(
        kafka={"bootstrap_servers": bootstrap},
        operators=factories(int(ttl_ms), operators),
        group_id=f"{prefix}workers",
        topic_prefix=prefix,
        http_port=int(port),
        session_timeout_s=6,
        start_timeout_s=10,
        checkpoint_s=float(checkpoint_s),
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    try:
        run(settings(*sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
