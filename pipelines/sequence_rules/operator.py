"""Sequence rules: findings from what the events of a group did, by the events' own times.

A record too far from its timestamp is ignored and counted. An arriving event is put among the kept ones of its rule and
group, then every cooldown bucket it can matter to is judged anew from what is kept: to a match it is the same which of
its events came first, and a finding that no longer holds is taken back. Findings with more evidence than they list are
judged at most every SAY_EVERY_MS of progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from pipelines.runtime.port import LATENESS_MS, Out, Record
from pipelines.sequence_rules.compiled import CompiledPack, CompiledRule
from pipelines.sequence_rules.evidence import Kept, Support, kept
from pipelines.sequence_rules.findings import MAX_EVIDENCE, body
from pipelines.sequence_rules.patterns import Patterns
from pipelines.sequence_rules.rates import GroupKey, Rates
from schemas.topics import RISK_FINDING

SAY_EVERY_MS = 10_000

_DUMP_VERSION = 2

Place = tuple[str, GroupKey, int]
"""Identity of a rule, group, cooldown bucket: what a finding is about."""


class SequenceRules:
    """The operator (see pipelines.runtime.port.Operator) for one partition.

    `packs` are rule packs with the log time (ms) from which each is in force, in order of time. A rule that is in two
    packs unchanged has one state.
    """

    name = "sequence_rules"

    def __init__(self, partition: int, packs: Sequence[tuple[int, CompiledPack]]) -> None:
        self._counts: Counter[str] = Counter()
        self.counters: Mapping[str, int] = self._counts
        self.wants = frozenset(name for _, pack in packs for name in pack.event_names)
        self.horizon_ms = max((pack.keep_ms for _, pack in packs), default=0) + 2 * LATENESS_MS
        self.configuration = " ".join(f"{since_ms} {pack.hash}" for since_ms, pack in packs)
        self._partition = partition
        self._packs = list(packs)[::-1]
        self._rules: dict[str, CompiledRule] = {rule.identity: rule for _, pack in packs for rule in pack.rules}
        self._empty()

    def _empty(self) -> None:
        self._patterns: dict[str, Patterns] = {}
        self._rates: dict[str, Rates] = {}
        for name, rule in self._rules.items():
            if rule.rule.when.metric is None:
                self._patterns[name] = Patterns(rule)
            else:
                self._rates[name] = Rates(rule)
        self._said: dict[Place, dict[str, Any]] = {}
        self._deferred: dict[Place, int] = {}
        self._tick = 0
        self._forgotten_ms = 0

    # records

    def on_event(self, record: Record, out: Out) -> None:
        """Fold one record."""
        since_ms, pack = self._packs[0]
        if since_ms > record.log_time_ms:
            older = self._pack_at(record.log_time_ms)
            if older is None:
                return
            pack = older
        fields = record.event
        selections = pack.index.select(fields)
        if not selections:
            return
        if type(fields["event_id"]) is not str:
            raise TypeError("event_id is not text")
        ms = record.event_ms
        ahead = ms - record.log_time_ms
        if ahead > LATENESS_MS or ahead < -LATENESS_MS or ms + LATENESS_MS <= self._forgotten_ms:
            self._counts["too_early" if ahead > 0 else "too_late"] += 1
            return
        tenant = fields.get("tenant_id")
        if type(tenant) is not str:
            tenant = ""
        event: Kept | None = None
        for selection in selections:
            rule: CompiledRule = selection.owner
            group = rule.group_of(fields)
            if group is None:
                # A metric rule asks this of every call that ended; most have no MCP server, and that is no gap.
                self._counts["without_group"] += rule.identity in self._patterns
                continue
            key = (tenant, group)
            rates = self._rates.get(rule.identity)
            if rates is not None:
                rates.add(key, record, pack.hash)
                continue
            if event is None:
                event = kept(record, pack.hash)
            patterns = self._patterns[rule.identity]
            if fields.get("retracted"):
                gone = Support([[event]], 1, True, False, [], [], holds=False)
                for bucket in patterns.remove(key, selection.step, event):
                    self._say((rule.identity, key, bucket), patterns.support(key, bucket) or gone, out)
                continue
            if patterns.full:
                self._counts["over_memory"] += 1
                continue
            for bucket in patterns.add(key, selection.step, event):
                place = (rule.identity, key, bucket)
                if self._said.get(place, _NOTHING)["evidence_count"] > MAX_EVIDENCE:
                    self._deferred[place] = max(record.cause_ms, self._deferred.get(place, 0))
                else:
                    self._say(place, patterns.support(key, bucket), out)

    def _pack_at(self, log_time_ms: int) -> CompiledPack | None:
        """The pack in force at a log time."""
        for since_ms, pack in self._packs:
            if since_ms <= log_time_ms:
                return pack
        return None

    def _say(self, place: Place, support: Support | None, out: Out, *, anew: bool = False, later: bool = False) -> None:
        """Say or take back a finding; unless `anew`, only if something changed. `later`: it is said again anyway."""
        said = self._said.get(place)
        name, key, bucket = place
        rule = self._rules[name]
        made = body(rule, key, bucket, self._partition, support) if support else None
        if support is None or not support.holds:
            if gone := said or made:
                out.retract(RISK_FINDING, gone["finding_id"], gone)
            if not later:
                self._said.pop(place, None)
        elif made is not None and (anew or made != said):
            self._said[place] = made
            # The host stamps what it is given, and what was said is compared with later.
            out.put(RISK_FINDING, made["finding_id"], dict(made))

    # progress

    def on_progress(self, t_ms: int, out: Out) -> None:
        """Judge what was put off and what closed; forget what no later record can change.

        A host that re-reads the log takes what is due by a progress as said, and no more. It cannot know which progress
        of the tick was the first one: what a record after the tick's begin changed is said again in the next.
        """
        tick = t_ms // SAY_EVERY_MS
        if tick <= self._tick:
            return
        self._tick = tick
        settled_ms = tick * SAY_EVERY_MS
        for place, log_ms in sorted(self._deferred.items()):
            name, key, bucket = place
            self._say(place, self._patterns[name].support(key, bucket), out, anew=True, later=log_ms >= settled_ms)
        self._deferred = {place: log_ms for place, log_ms in self._deferred.items() if log_ms >= settled_ms}
        for name, rates in self._rates.items():
            for key, bucket, log_ms in rates.closed(t_ms, settled_ms):
                support = rates.support(key, bucket, t_ms)
                self._say((name, key, bucket), support, out, anew=True, later=log_ms >= settled_ms)
        self._forget(t_ms)

    def _forget(self, t_ms: int) -> None:
        self._forgotten_ms = t_ms
        for patterns in self._patterns.values():
            patterns.forget(t_ms)
        for rates in self._rates.values():
            rates.forget(t_ms)
        over = []
        for place in self._said:
            rule = self._rules[place[0]]
            if (place[2] + 1) * rule.cooldown_ms + rule.span_ms + LATENESS_MS <= t_ms:
                over.append(place)
        for place in over:
            del self._said[place]

    # checkpoint

    def dump(self) -> bytes:
        """The state as JSON."""
        return orjson.dumps(
            {
                "version": _DUMP_VERSION,
                "patterns": {name: patterns.dump() for name, patterns in self._patterns.items()},
                "rates": {name: rates.dump() for name, rates in self._rates.items()},
                "said": list(self._said.items()),
                "deferred": list(self._deferred.items()),
                "tick": self._tick,
                "forgotten_ms": self._forgotten_ms,
            }
        )

    def load(self, state: bytes) -> None:
        """Take over a dumped state; what belongs to rules that are in no pack any more is left out.

        Raises ValueError if it is something else.
        """
        data = orjson.loads(state)
        if not isinstance(data, dict) or data.get("version") != _DUMP_VERSION:
            raise ValueError("not a state of sequence_rules of this version")
        self._empty()
        for kind in ("patterns", "rates"):
            rules: dict[str, Any] = getattr(self, f"_{kind}")
            for name, dumped in data[kind].items():
                if name in rules:
                    rules[name].load(dumped)
        self._said = {_place(place): said for place, said in data["said"] if place[0] in self._rules}
        self._deferred = {_place(place): log_ms for place, log_ms in data["deferred"] if place[0] in self._rules}
        self._tick, self._forgotten_ms = data["tick"], data["forgotten_ms"]


_NOTHING: dict[str, Any] = {"evidence_count": 0}


def _place(data: list[Any]) -> Place:
    name, (tenant, group), bucket = data
    return name, (tenant, group), bucket
