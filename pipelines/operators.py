"""The operators of a worker, in the order in which they are chained, as the configuration asks for them."""

from __future__ import annotations

from pathlib import Path

from pipelines.pending_calls.operator import PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.rolling_metrics.operator import RollingMetrics
from pipelines.runtime.port import OperatorFactory
from pipelines.sequence_rules.compiled import compile_pack
from pipelines.sequence_rules.loader import SHIPPED, load_rules
from pipelines.sequence_rules.operator import SequenceRules
from schemas.config import Config


def build_operators(config: Config) -> list[OperatorFactory]:
    """Factories of pending_calls, rolling_metrics and sequence_rules. What one derives the next sees.

    Raises UserError for a mistake in a rule file.
    """
    ttls = Ttls(
        config.reliability.pending_call_ttl_ms, config.pipelines.approval_ttl_ms, config.pipelines.ttl_overrides
    )
    paths = [SHIPPED] if config.pipelines.shipped_rules else []
    packs = [(0, compile_pack(load_rules([*paths, *map(Path, config.pipelines.rules)])))]
    return [
        lambda _: PendingCalls(ttls),
        RollingMetrics,
        lambda partition: SequenceRules(partition, packs),
    ]
