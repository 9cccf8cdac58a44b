"""A rule pack made ready to run: selections, group readers, spans, and one index over all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from pipelines.rolling_metrics.ends import TOOL_ENDS
from pipelines.sequence_rules.conditions import Condition, ConditionError, parse
from pipelines.sequence_rules.fields import FieldError, check_event, reader, resolve
from pipelines.sequence_rules.selection import Index, Selection
from schemas.identity import join_key
from schemas.rules import SESSION, Rule, RulePack, Where
from schemas.topics import TOOL_CALL_DERIVED, TOPICS

KEPT_EACH_SIDE = 16
"""Events kept of one slot from each of its ends; a rule that counts keeps what it must count and one more."""
MIN_COOLDOWN_MS = 60_000
SUB_WINDOW_MS = 10_000
"""Metric rules look at their window after each of these that had a call."""
MAX_GROUP_CHARS = 200
MAX_SLOT_MS = 60_000

_SEEN = frozenset(
    name for topic in TOPICS if topic.kind == "input" or topic.name == TOOL_CALL_DERIVED for name in topic.events
)

Loc = tuple[str | int, ...]


class RuleError(ValueError):
    """A rule that has the right form and no meaning. `loc` is where, within the rule."""

    def __init__(self, message: str, loc: Loc) -> None:
        super().__init__(message)
        self.loc = loc


class CompiledRule:
    """One rule, ready to run. `identity` changes with anything that decides its findings."""

    def __init__(self, rule: Rule) -> None:
        """Raises RuleError."""
        self.rule = rule
        content = orjson.dumps(rule.content(), option=orjson.OPT_SORT_KEYS)
        self.identity = f"{rule.id}@{rule.version}:{hashlib.sha256(content).hexdigest()[:16]}"
        self.cooldown_ms = rule.cooldown
        if rule.cooldown < MIN_COOLDOWN_MS:
            raise RuleError(f"cooldown is below {MIN_COOLDOWN_MS // 1000} s", ("cooldown",))
        self.span_ms = rule.when.span_ms
        self.withins: tuple[int, ...] = ()
        self.more_than: int | None = None
        self.kept = KEPT_EACH_SIDE
        self.selections: list[Selection] = []
        self.groups = tuple(rule.groups)
        self.by_session = self.groups[: len(rule.group_by)] == (SESSION,)
        when = rule.when
        names: list[str] = []
        if when.sequence is not None:
            for number, step in enumerate(when.sequence):
                loc: Loc = ("when", "sequence", number)
                self._select(number, step.event, step.where, loc)
                names += step.event
            self.withins = tuple(step.within or 0 for step in when.sequence[1:])
            self._read_groups(names, ("group_by",))
        elif when.count is not None:
            self._select(0, when.count.event, when.count.where, ("when", "count"))
            self.more_than = when.count.more_than
            self.kept = max(KEPT_EACH_SIDE, when.count.more_than + 1)
            self._read_groups(when.count.event, ("when", "count", "same"))
        elif when.metric is not None:
            if when.metric.window % SUB_WINDOW_MS:
                raise RuleError("window is no multiple of 10 s", ("when", "metric", "window"))
            self._select(0, sorted(TOOL_ENDS), when.metric.where, ("when", "metric"), common=True)
            self.by_session = self.groups == (SESSION,)
            self._read_groups(["tool.call.completed", "tool.call.timed_out"], ("when", "metric", "group_by"))
        self.slot_ms = min((*self.withins, self.span_ms, MAX_SLOT_MS)) if self.span_ms else self.cooldown_ms
        self.least = len(self.selections) if self.more_than is None else self.more_than + 1
        # An event of no match matters until its partners can no longer come; one of a match as long as its bucket.
        self.loose_ms = self.slot_ms + self.span_ms
        self.keep_ms = self.loose_ms + self.cooldown_ms

    def _select(self, step: int, names: list[str], wheres: list[Where], loc: Loc, *, common: bool = False) -> None:
        """Compile a selection. `common`: fields are those that all ends of a call have, inferred ones too."""
        for name in names:
            try:
                check_event(name)
            except FieldError as error:
                raise RuleError(str(error), (*loc, "event")) from None
            if name not in _SEEN:
                raise RuleError(f"{name} is not among the events that rules see", (*loc, "event"))
        alternatives: list[list[Condition]] = []
        for number, where in enumerate(wheres):
            conditions = []
            for key, value in where.items():
                try:
                    conditions.append(parse(key, value, ["tool.call.completed"] if common else names))
                except (FieldError, ConditionError) as error:
                    raise RuleError(str(error), (*loc, "where", number, key)) from None
            alternatives.append(conditions)
        self.selections.append(Selection(self, step, names, alternatives))

    def _read_groups(self, names: list[str], loc: Loc) -> None:
        readers = []
        for field in self.groups:
            try:
                readers.append(_session if field == SESSION else reader(resolve(field, names).parts))
            except FieldError as error:
                raise RuleError(str(error), loc) from None
        self._readers: tuple[Callable[[Mapping[str, Any]], Any], ...] = tuple(readers)

    def group_of(self, event: Mapping[str, Any]) -> str | None:
        """The group that an event belongs to, as one text; None if it lacks one of the fields."""
        values = []
        for read in self._readers:
            value = read(event)
            if type(value) is not str:
                if value is None or isinstance(value, (list, tuple, dict)):
                    return None
                value = str(value)
            values.append(value if len(value) <= MAX_GROUP_CHARS else _short(value))
        text = "|".join(values)
        if "%" in text or text.count("|") >= len(values):
            return join_key(*values)
        return text

    def reach_ms(self, step: int) -> int:
        """How long after an event of this step the last event of its match can come."""
        return sum(self.withins[step:]) if self.more_than is None else self.span_ms

    def bucket(self, ms: int) -> int:
        """The cooldown bucket of a time, aligned to the epoch."""
        return ms // self.cooldown_ms

    def slot(self, ms: int) -> int:
        """Begin, in ms, of the slot of a time: no longer than the shortest `within`, cut where a bucket begins."""
        return max(ms - ms % self.slot_ms, ms - ms % self.cooldown_ms)


class CompiledPack:
    """A pack, ready to run."""

    def __init__(self, pack: RulePack, rules: list[CompiledRule]) -> None:
        self.hash = pack.hash
        self.rules = rules
        selections = [selection for rule in rules for selection in rule.selections]
        self.index = Index(selections)
        self.event_names = frozenset(name for selection in selections for name in selection.event_names)
        self.keep_ms = max((rule.keep_ms for rule in rules), default=0)


def compile_pack(pack: RulePack) -> CompiledPack:
    """Raises RuleError for the first rule that has no meaning; packs from `load_rules` have been tried."""
    return CompiledPack(pack, [CompiledRule(rule) for rule in pack.rules])


def _session(event: Mapping[str, Any]) -> str:
    """The session of an event as its topic's key has it, so that a group never spans two partitions."""
    session = event.get("root_session_id") or event.get("session_id") or event.get("connection_id")
    if not session:
        producer = event.get("producer")
        session = producer.get("id") if type(producer) is dict else ""
    return str(session or "")


def _short(text: str) -> str:
    return text[: MAX_GROUP_CHARS - 17] + "~" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
