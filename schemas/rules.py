"""Rules as people write them: the YAML form of sequence, count and metric rules, as strict models.

A rule file is `rules: [ … ]`. What a field path or an operator means, and whether they exist, is checked when a pack is
compiled (pipelines/sequence_rules); here stands the form.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

RuleSeverity = Literal["info", "low", "medium", "warning", "high", "critical"]
Level = Literal["informational", "low", "medium", "high", "critical"]
Maturity = Literal["experimental", "test", "stable"]
Action = Literal["alert", "create_finding", "require_approval"]
MetricName = Literal[
    "agent_tool_call_total",
    "agent_tool_call_error_total",
    "agent_tool_call_blocked_total",
    "agent_tool_call_error_rate",
]

SESSION = "root_session_id"
"""The group of a rule that names none: the session of the top agent."""
MAX_SPAN_MS = 24 * 3_600_000
"""A rule may look back this far, all its steps together; the runtime keeps and re-reads that much."""
DEFAULT_COOLDOWN_MS = 600_000
DEFAULT_MIN_COUNT = 21

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|h)")
_CONDITION = re.compile(r"\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*")


def parse_duration(value: Any) -> Any:
    """`"60s"`, `"5m"`, `"1h"`, `"500ms"` as milliseconds; a number stays as it is. Raises ValueError for other text."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no duration; write a whole number and ms, s, m or h, e.g. 60s")
    return int(match[1]) * _UNITS[match[2]]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict) else value


Duration = Annotated[int, BeforeValidator(parse_duration), Field(ge=1, le=MAX_SPAN_MS)]
Scalar: TypeAlias = bool | int | float | str
Where: TypeAlias = dict[str, Scalar | list[Scalar]]
"""Field path, with an operator as suffix, to a value: all must hold. A list of values: any of them."""
Wheres = Annotated[list[Where], BeforeValidator(_as_list)]
"""One mapping or a list of mappings; of a list any one must hold."""
Names = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
SampleEvent: TypeAlias = dict[str, Any]
"""An event of a sample: `event`, its fields, `at` (time since the sample's begin), `repeat` and `every` for many."""
Sample = Annotated[list[SampleEvent], BeforeValidator(_as_list), Field(min_length=1)]


class RuleModel(BaseModel):
    """Base of all parts: strict, frozen, no unknown key."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Step(RuleModel):
    """An event of a sequence. `within` is the time since the step before it, by the events' own timestamps."""

    event: Names
    where: Wheres = []
    within: Duration | None = None


class CountWhen(RuleModel):
    """More than so many events within a time, alike in the fields `same`."""

    event: Names
    where: Wheres = []
    same: list[str] = []
    more_than: int = Field(ge=0, le=10_000)
    within: Duration


class MetricWhen(RuleModel):
    """A number over the ended tool calls of a group in a sliding window, looked at each 10 s.

    A rate is looked at once `min_count` calls of the window have a known outcome, DEFAULT_MIN_COUNT unless given.
    """

    name: MetricName
    group_by: Names
    window: Duration
    condition: str
    min_count: int | None = Field(default=None, ge=1)
    where: Wheres = []

    @model_validator(mode="after")
    def _condition_is_readable(self) -> MetricWhen:
        self.threshold()
        return self

    def threshold(self) -> tuple[str, float]:
        """The comparison and the number. Raises ValueError for anything but `> 0.3` and the like."""
        match = _CONDITION.fullmatch(self.condition)
        if match is None:
            raise ValueError(f"condition {self.condition!r} is not a comparison with a number, e.g. > 0.3")
        return match[1], float(match[2])


class When(RuleModel):
    """Exactly one way to speak."""

    sequence: list[Step] | None = Field(default=None, min_length=1, max_length=8)
    count: CountWhen | None = None
    metric: MetricWhen | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> When:
        given = [name for name in ("sequence", "count", "metric") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of sequence, count, metric; has {', '.join(given) or 'none'}")
        for number, step in enumerate(self.sequence or [], start=1):
            if number == 1 and step.within is not None:
                raise ValueError("step 1 has within, but no step before it")
            if number > 1 and step.within is None:
                raise ValueError(f"step {number} needs within: how long after step {number - 1}")
        if self.span_ms > MAX_SPAN_MS:
            raise ValueError(f"the steps span {self.span_ms // 1000} s, at most {MAX_SPAN_MS // 1000} s are kept")
        return self

    @property
    def span_ms(self) -> int:
        """How long before its last event a match can begin, in ms."""
        if self.sequence is not None:
            return sum(step.within or 0 for step in self.sequence)
        if self.count is not None:
            return self.count.within
        return self.metric.window if self.metric is not None else 0


class Samples(RuleModel):
    """Event logs on which the rule must speak (positive), and on which it must not (negative)."""

    positive: list[Sample] = []
    negative: list[Sample] = []


class Rule(RuleModel):
    """One rule. `severity` is the design's word; `level`, Sigma's, overrides the risk that follows from it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")
    name: str = Field(min_length=1, max_length=200)
    severity: RuleSeverity
    when: When
    action: list[Action] = Field(default=["create_finding"], min_length=1)
    version: int = Field(default=1, ge=1)
    description: str | None = None
    level: Level | None = None
    status: Maturity = "experimental"
    tags: list[str] = []
    falsepositives: list[str] = []
    cooldown: Duration = DEFAULT_COOLDOWN_MS
    group_by: Names = [SESSION]
    samples: Samples | None = None

    @property
    def groups(self) -> list[str]:
        """The fields whose values a finding of this rule is about."""
        if self.when.metric is not None:
            return self.when.metric.group_by
        return self.group_by + (self.when.count.same if self.when.count is not None else [])

    def content(self) -> dict[str, Any]:
        """What of the rule decides its findings: all but its samples."""
        return self.model_dump(exclude={"samples", "falsepositives"})


class RuleFile(RuleModel):
    """A file of rules."""

    rules: list[Rule] = Field(min_length=1)


class RulePack(RuleModel):
    """Rules that are in force together. Two packs with equal content have an equal hash, whatever files they are in."""

    rules: tuple[Rule, ...]

    @property
    def hash(self) -> str:
        """`sha256:<hex>` over the rules' content as JSON with sorted keys, rules sorted by id."""
        content = sorted((rule.content() for rule in self.rules), key=lambda rule: str(rule["id"]))
        return "sha256:" + hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
