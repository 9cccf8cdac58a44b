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


class _Probe:
    """Arms by the value of one field: by equal values, and by regular expressions behind one that unites them.

    What a text reaches is remembered. `name`: the values are those of this name in a list of objects, with no more ado.
    """

    __slots__ = ("default", "equal", "name", "read", "regexes", "remembered", "united")

    def __init__(self, condition: Condition) -> None:
        self.read = _reader(condition)
        field = condition.field
        plain = field.list_at == 2 and field.parts[0] == "facts" and len(field.parts) == 3 and not field.plural
        self.name = field.parts[2] if plain else None
        self.default = field.default
        self.equal: dict[Any, list[_Arm]] = {}
        self.regexes: list[tuple[re2._Regexp, _Arm]] = []
        self.united: re2._Regexp | None = None
        self.remembered: dict[Any, list[_Arm]] = {}

    def add(self, condition: Condition, arm: _Arm) -> None:
        for value in condition.values:
            if condition.op in _AS_REGEX:
                self.regexes.append((regex(_AS_REGEX[condition.op](str(value))), arm))
            else:
                self.equal.setdefault(value, []).append(arm)

    def finish(self) -> None:
        """Make the united expression; without it (it may be too large) each is tried."""
        try:
            self.united = regex("|".join(f"(?:{one.pattern})" for one, _ in self.regexes)) if self.regexes else None
        except ConditionError:
            self.united = None

    def reach(self, root: Any, found: list[_Arm]) -> None:
        remembered, name = self.remembered, self.name
        values: Sequence[Any]
        if name is not None and type(root) is list:
            values = [element.get(name, self.default) for element in root if type(element) is dict]
        else:
            values = self.read(root)
        for value in values:
            try:
                arms = remembered.get(value)
            except TypeError:
                continue
            if arms is None:
                arms = self._search(value)
            if arms:
                found += arms

    def _search(self, value: Any) -> list[_Arm]:
        arms = list(self.equal.get(value, ()))
        if type(value) is not str:
            return arms
        if self.regexes:
            raw = encoded(value)
            if self.united is None or self.united.search(raw) is not None:
                arms += [arm for one, arm in self.regexes if one.search(raw) is not None]
        if len(value) <= MAX_REMEMBERED_CHARS:
            if len(self.remembered) >= MAX_REMEMBERED:
                self.remembered.clear()
            self.remembered[value] = arms
        return arms


class _Presence:
    """Arms that need a list of facts not to be empty, whatever it holds."""

    __slots__ = ("arms",)

    def __init__(self, condition: Condition) -> None:
        self.arms: list[_Arm] = []

    def add(self, condition: Condition, arm: _Arm) -> None:
        self.arms.append(arm)

    def finish(self) -> None: ...

    def reach(self, root: Any, found: list[_Arm]) -> None:
        if root:
            found += self.arms


class _Plan:
    """How the events of one name and tool source are looked at."""

    def __init__(self) -> None:
        self.always: list[_Arm] = []
        self.on_facts: dict[str, list[_Probe | _Presence]] = {}
        self.on_event: list[_Probe | _Presence] = []

    def select(self, event: Mapping[str, Any]) -> list[Selection]:
        """The selections that the event meets, each once."""
        found = self.always
        if self.on_facts or self.on_event:
            found = list(found)
            facts = event.get("facts")
            if type(facts) is dict:
                on_facts = self.on_facts
                for name in facts:
                    if name in on_facts:
                        for probe in on_facts[name]:
                            probe.reach(facts[name], found)
            for probe in self.on_event:
                probe.reach(event, found)
        met: list[Selection] = []
        for arm in found:
            selection = arm.selection
            if selection not in met and (arm.holds is None or arm.holds(event)):
                met.append(selection)
        return met


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
        name, source = event["event_name"], event.get("tool_source", "unknown")
        try:
            plan = self._plans.get((name, source))
        except TypeError:
            plan = None
        if plan is None:
            if source in SOURCES:
                return _NONE
            plan = self._plans.get((name, "unknown"))
        return plan.select(event) if plan is not None else _NONE


_NONE: list[Selection] = []


def _plan(selections: list[Selection], source: str) -> _Plan | None:
    plan = _Plan()
    probes: dict[tuple[str, type[_Probe | _Presence]], _Probe | _Presence] = {}
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
            kind = _Probe if telling.op in {"eq", "in", *_AS_REGEX} else _Presence
            probe = probes.get((telling.field.path, kind))
            if probe is None:
                probe = probes[telling.field.path, kind] = kind(telling)
                if telling.field.parts[0] == "facts":
                    plan.on_facts.setdefault(telling.field.parts[1], []).append(probe)
                else:
                    plan.on_event.append(probe)
            probe.add(telling, arm)
    for probe in probes.values():
        probe.finish()
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
