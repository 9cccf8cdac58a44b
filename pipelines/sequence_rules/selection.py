"""Which selections of a rule pack an event meets, without asking every rule.

Per event name and tool source a plan is made once. In it each alternative of a selection is reached through its most
telling condition: a table of values, or one regular expression that unites all those of a field. Most events reach
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import re2

from pipelines.sequence_rules.conditions import Condition, ConditionError, Predicate, encoded, predicate, regex
from pipelines.sequence_rules.fields import LISTS, reader
from schemas.events import ToolSource

SOURCES: tuple[str, ...] = get_args(ToolSource)
MAX_REMEMBERED = 8192
"""Texts of a field whose matches are remembered; tool names and paths repeat."""
MAX_REMEMBERED_CHARS = 256

_AS_REGEX: dict[str, Callable[[str], str]] = {
    "regex": str,
    "contains": re2.escape,
    "startswith": lambda text: r"\A" + re2.escape(text),
    "endswith": lambda text: re2.escape(text) + r"\z",
}


class Selection:
    """What one step of a rule looks for: one of the event names, and all conditions of any of the alternatives."""

    def __init__(self, owner: Any, step: int, event_names: Sequence[str], alternatives: list[list[Condition]]) -> None:
        self.owner = owner
        self.step = step
        self.event_names = frozenset(event_names)
        self.alternatives = alternatives or [[]]


class _Arm:
    """An alternative of a selection, for one tool source."""

    __slots__ = ("holds", "selection")

    def __init__(self, selection: Selection, conditions: list[Condition]) -> None:
        self.selection = selection
        self.holds: Predicate | None = predicate(conditions) if conditions else None


class _Table:
    """Arms by the values of one field."""

    __slots__ = ("arms", "read")

    def __init__(self, condition: Condition) -> None:
        self.read = _values(condition)
        self.arms: dict[Any, list[_Arm]] = {}

    def add(self, condition: Condition, arm: _Arm) -> None:
        for value in condition.values:
            self.arms.setdefault(value, []).append(arm)

    def reach(self, event: Mapping[str, Any], found: list[_Arm]) -> None:
        for value in self.read(event):
            try:
                arms = self.arms.get(value)
            except TypeError:
                continue
            if arms is not None:
                found += arms


class _Gate:
    """Arms by regular expressions on one field, behind one expression that unites them."""

    __slots__ = ("arms", "read", "remembered", "united")

    def __init__(self, condition: Condition) -> None:
        self.read = _values(condition)
        self.arms: list[tuple[re2._Regexp, _Arm]] = []
        self.united: re2._Regexp | None = None
        self.remembered: dict[str, list[_Arm]] = {}

    def add(self, condition: Condition, arm: _Arm) -> None:
        for value in condition.values:
            self.arms.append((regex(_AS_REGEX[condition.op](str(value))), arm))

    def unite(self) -> None:
        """Make the united expression; without it (it may be too large) each is tried."""
        try:
            self.united = regex("|".join(f"(?:{one.pattern})" for one, _ in self.arms))
        except ConditionError:
            self.united = None

    def reach(self, event: Mapping[str, Any], found: list[_Arm]) -> None:
        for text in self.read(event):
            if type(text) is not str:
                continue
            arms = self.remembered.get(text)
            if arms is None:
                arms = self._search(text)
                if len(text) <= MAX_REMEMBERED_CHARS:
                    if len(self.remembered) >= MAX_REMEMBERED:
                        self.remembered.clear()
                    self.remembered[text] = arms
            found += arms

    def _search(self, text: str) -> list[_Arm]:
        raw = encoded(text)
        if self.united is not None and self.united.search(raw) is None:
            return []
        return [arm for one, arm in self.arms if one.search(raw) is not None]


class _Plan:
    """How the events of one name and tool source are looked at."""

    def __init__(self) -> None:
        self.always: list[_Arm] = []
        self.on_facts: list[_Table | _Gate] = []
        self.on_event: list[_Table | _Gate] = []

    def select(self, event: Mapping[str, Any]) -> list[Selection]:
        """The selections that the event meets, each once."""
        found = list(self.always)
        if event.get("facts"):
            for probe in self.on_facts:
                probe.reach(event, found)
        for probe in self.on_event:
            probe.reach(event, found)
        if not found:
            return []
        met: dict[int, Selection] = {}
        for arm in found:
            selection = arm.selection
            if id(selection) not in met and (arm.holds is None or arm.holds(event)):
                met[id(selection)] = selection
        return list(met.values())


class Index:
    """The selections of a pack."""

    def __init__(self, selections: Sequence[Selection]) -> None:
        self._plans = {
            (name, source): plan
            for name in {name for selection in selections for name in selection.event_names}
            for source in SOURCES
            if (plan := _plan([one for one in selections if name in one.event_names], source)) is not None
        }

    def select(self, event: Mapping[str, Any]) -> list[Selection]:
        """The selections that an event meets."""
        source = event.get("tool_source", "unknown")
        plan = self._plans.get((event["event_name"], source if source in SOURCES else "unknown"))
        return plan.select(event) if plan is not None else []


def _plan(selections: list[Selection], source: str) -> _Plan | None:
    plan = _Plan()
    probes: dict[tuple[str, bool], _Table | _Gate] = {}
    for selection in selections:
        for conditions in selection.alternatives:
            if not all(one.test()(source) for one in conditions if _is_source(one)):
                continue
            rest = [one for one in conditions if not _is_source(one)]
            arm = _Arm(selection, rest)
            telling = max(rest, key=_telling, default=None)
            if telling is None or _telling(telling) == 0:
                plan.always.append(arm)
                continue
            place = (telling.field.path, telling.op in _AS_REGEX)
            probe = probes.get(place)
            if probe is None:
                probe = probes[place] = _Gate(telling) if telling.op in _AS_REGEX else _Table(telling)
                (plan.on_facts if telling.field.parts[0] == "facts" else plan.on_event).append(probe)
            probe.add(telling, arm)
    for probe in probes.values():
        if isinstance(probe, _Gate):
            probe.unite()
    return plan if plan.always or probes else None


def _is_source(condition: Condition) -> bool:
    return condition.field.parts == ("tool_source",) and condition.op in {"eq", "in", "not_in"}


def _telling(condition: Condition) -> int:
    """How few events a condition lets through, roughly; 0 if events cannot be reached through it."""
    in_facts = condition.field.parts[0] == "facts"
    if condition.op in {"eq", "in"}:
        if any(value == condition.field.default for value in condition.values) and condition.field.list_at is None:
            return 0
        return 4 if in_facts else 2
    if condition.op in _AS_REGEX:
        return 3 if in_facts else 1
    return 0


def _values(condition: Condition) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """A function that gives all values of the condition's field in an event."""
    field = condition.field
    if field.list_at is None:
        read = reader(field.parts, field.default)

        def plain(event: Mapping[str, Any]) -> Sequence[Any]:
            value = read(event)
            return value if isinstance(value, LISTS) else [value]

        return plain
    elements_of, inner = reader(field.parts[: field.list_at]), reader(field.parts[field.list_at :], field.default)

    def of_elements(event: Mapping[str, Any]) -> list[Any]:
        elements = elements_of(event)
        if not isinstance(elements, LISTS):
            return []
        values: list[Any] = []
        for element in elements:
            if type(element) is dict:
                value = inner(element)
                if isinstance(value, LISTS):
                    values += value
                else:
                    values.append(value)
        return values

    return of_elements
