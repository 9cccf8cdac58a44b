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
from pipelines.sequence_rules.fields import LISTS, Field, reader
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
        self.read = _reader(condition)
        self.arms: dict[Any, list[_Arm]] = {}

    def add(self, condition: Condition, arm: _Arm) -> None:
        for value in condition.values:
            self.arms.setdefault(value, []).append(arm)

    def reach(self, root: Any, found: list[_Arm]) -> None:
        for value in self.read(root):
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
        self.read = _reader(condition)
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

    def reach(self, root: Any, found: list[_Arm]) -> None:
        for text in self.read(root):
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


class _Presence:
    """Arms that need a list of facts not to be empty, whatever it holds."""

    __slots__ = ("arms",)

    def __init__(self, condition: Condition) -> None:
        self.arms: list[_Arm] = []

    def add(self, condition: Condition, arm: _Arm) -> None:
        self.arms.append(arm)

    def reach(self, root: Any, found: list[_Arm]) -> None:
        if root:
            found += self.arms


_Probe = _Table | _Gate | _Presence


class _Plan:
    """How the events of one name and tool source are looked at."""

    def __init__(self) -> None:
        self.always: list[_Arm] = []
        self.on_facts: dict[str, list[_Probe]] = {}
        self.on_event: list[_Probe] = []

    def select(self, event: Mapping[str, Any]) -> list[Selection]:
        """The selections that the event meets, each once."""
        found = list(self.always)
        facts = event.get("facts")
        if type(facts) is dict:
            on_facts = self.on_facts
            for name, fact in facts.items():
                if name in on_facts:
                    for probe in on_facts[name]:
                        probe.reach(fact, found)
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
    probes: dict[tuple[str, type[_Probe]], _Probe] = {}
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
            kind = _probe(telling)
            probe = probes.get((telling.field.path, kind))
            if probe is None:
                probe = probes[telling.field.path, kind] = kind(telling)
                if telling.field.parts[0] == "facts":
                    plan.on_facts.setdefault(telling.field.parts[1], []).append(probe)
                else:
                    plan.on_event.append(probe)
            probe.add(telling, arm)
    for probe in probes.values():
        if isinstance(probe, _Gate):
            probe.unite()
    return plan if plan.always or probes else None


def _is_source(condition: Condition) -> bool:
    return condition.field.parts == ("tool_source",) and condition.op in {"eq", "in", "not_in"}


def _telling(condition: Condition) -> int:
    """How few events a condition lets through, roughly; 0 if events cannot be reached through it."""
    field, op = condition.field, condition.op
    in_facts = field.parts[0] == "facts"
    if op in {"eq", "in"}:
        if field.list_at is None and field.default in condition.values:
            return 0
        if in_facts:
            if len(condition.values) > 1:
                return 4
            return 3 if field.few and field.list_at is not None else 6
        return 1 if field.few else 2
    if op in _AS_REGEX:
        return 5 if in_facts else 1
    # Most calls have no hosts, packages or secrets.
    return 3 if in_facts and (field.plural or field.list_at) and op != "exists" else 0


def _probe(condition: Condition) -> type[_Probe]:
    if condition.op in {"eq", "in"}:
        return _Table
    return _Gate if condition.op in _AS_REGEX else _Presence


def _reader(condition: Condition) -> Callable[[Any], Sequence[Any]]:
    """A function that gives all values of a condition's field in an event, or, for facts, in the fact of that name."""
    field = condition.field
    skip = 2 if field.parts[0] == "facts" else 0
    parts = field.parts[skip:]
    if field.list_at is not None:
        return _in_elements(parts[: field.list_at - skip], parts[field.list_at - skip :], field)
    if not parts:
        return lambda fact: fact if isinstance(fact, LISTS) else (fact,)
    read = reader(parts, field.default)

    def plain(event: Mapping[str, Any]) -> Sequence[Any]:
        value = read(event)
        return value if isinstance(value, LISTS) else (value,)

    return plain


def _in_elements(outer: tuple[str, ...], inner: tuple[str, ...], field: Field) -> Callable[[Any], Sequence[Any]]:
    elements_of, value_of, default = reader(outer) if outer else None, reader(inner, field.default), field.default
    (name,) = inner if len(inner) == 1 else (None,)

    def of_elements(root: Any) -> Sequence[Any]:
        elements = root if elements_of is None else elements_of(root)
        if not isinstance(elements, LISTS):
            return ()
        if name is not None:
            values = [element.get(name, default) for element in elements if type(element) is dict]
        else:
            values = [value_of(element) for element in elements if type(element) is dict]
        if not field.plural:
            return values
        return [value for found in values if isinstance(found, LISTS) for value in found]

    return of_elements
