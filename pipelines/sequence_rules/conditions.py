"""The `where` of a rule, compiled to a predicate on an event's JSON.

A condition is a field path with an operator as its suffix (`tool_name.regex`, `tool_source_in`; none: equal).
Conditions on the same list of objects (`facts.commands.argv0`, `facts.commands.sub`) must hold for one and the same
element; on a list of plain values any element will do. A field that an event does not have meets only `exists: false`,
`not_in` and `not_regex`; an empty list only the first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import re2

from pipelines.sequence_rules.fields import LISTS, Field, FieldError, nearest, reader, resolve
from schemas.rules import Scalar

Test = Callable[[Any], bool]
"""Whether one plain value, or None for a missing one, meets a condition."""
Predicate = Callable[[Mapping[str, Any]], bool]

OPERATORS = (
    "eq",
    "in",
    "not_in",
    "regex",
    "not_regex",
    "exists",
    "contains",
    "startswith",
    "endswith",
    "gt",
    "gte",
    "lt",
    "lte",
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_TEXT: dict[str, Callable[[str, Any], bool]] = {
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
}


_ONE_VALUE = frozenset({"exists", *_COMPARE})


class ConditionError(ValueError):
    """A condition that cannot be compiled."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of a `where`: the field, the operator and the values of which any one will do."""

    field: Field
    op: str
    values: tuple[Scalar, ...]

    def test(self) -> Test:
        """The compiled condition. Raises ConditionError for a value that the operator cannot take."""
        return _TESTS[self.op](self)


def parse(key: str, value: Scalar | list[Scalar], event_names: list[str]) -> Condition:
    """The condition of one line of a `where`. Raises FieldError and ConditionError."""
    field, op = _split(key, event_names)
    values = tuple(value) if isinstance(value, list) else (value,)
    if op == "eq" and isinstance(value, list):
        op = "in"
    if not values:
        raise ConditionError(f"{key} has no values")
    if len(values) > 1 and op in _ONE_VALUE:
        raise ConditionError(f"{key} takes one value, not {len(values)}")
    condition = Condition(field, op, values)
    condition.test()
    return condition


def _split(key: str, event_names: list[str]) -> tuple[Field, str]:
    """Field and operator of a key. The whole key is tried first, since a field may end like an operator."""
    try:
        return resolve(key, event_names), "eq"
    except FieldError as error:
        for op in sorted(OPERATORS, key=len, reverse=True):
            for mark in (".", "_"):
                if key.endswith(mark + op) and len(key) > len(op) + 1:
                    return resolve(key[: -len(op) - 1], event_names), op
        path, _, last = key.rpartition(".")
        if path and (hint := nearest(last, list(OPERATORS))):
            try:
                resolve(path, event_names)
            except FieldError:
                raise error from None
            raise ConditionError(f"{path} has no field and no operator {last!r}{hint}") from None
        raise


def regex(pattern: Any) -> re2._Regexp:
    """A compiled RE2 expression (https://github.com/google/re2/wiki/Syntax), searched anywhere in the text.

    Raises ConditionError with RE2's own reason.
    """
    if not isinstance(pattern, str):
        raise ConditionError(f"regex {pattern!r} is not text")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        raise ConditionError(
            f"regex {pattern!r} is no RE2 expression: {reason.decode() if isinstance(reason, bytes) else reason}"
        ) from None


def encoded(text: str) -> bytes:
    """Text as RE2 reads it; what is no valid Unicode becomes a question mark."""
    return text.encode(errors="replace")


def predicate(conditions: Iterable[Condition]) -> Predicate:
    """All conditions of one mapping as one function."""
    parts: list[Predicate] = []
    lists: dict[tuple[str, ...], list[Predicate]] = {}
    for condition in conditions:
        field = condition.field
        if field.list_at is None:
            parts.append(_any_value(reader(field.parts, field.default), condition))
        else:
            read = reader(field.parts[field.list_at :], field.default)
            lists.setdefault(field.parts[: field.list_at], []).append(_any_value(read, condition))
    parts += [_any_element(reader(path), inner) for path, inner in lists.items()]
    if len(parts) == 1:
        return parts[0]

    def all_of(event: Mapping[str, Any]) -> bool:
        for part in parts:  # noqa: SIM110 (a loop is faster than all() with a generator)
            if not part(event):
                return False
        return True

    return all_of


def _any_value(read: Callable[[Mapping[str, Any]], Any], condition: Condition) -> Predicate:
    test = condition.test()
    if not condition.field.plural:
        return lambda event: test(read(event))

    def holds(event: Mapping[str, Any]) -> bool:
        values = read(event)
        if condition.op == "exists":
            return test(values or None)
        return isinstance(values, LISTS) and any(map(test, values))

    return holds


def _any_element(read: Callable[[Mapping[str, Any]], Any], each: list[Predicate]) -> Predicate:
    def holds(event: Mapping[str, Any]) -> bool:
        elements = read(event)
        if not isinstance(elements, LISTS):
            return False
        return any(type(element) is dict and all(part(element) for part in each) for element in elements)

    return holds


def _same(value: Any, wanted: Scalar) -> bool:
    # True == 1 in Python, but not in YAML.
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _equal(condition: Condition) -> Test:
    (wanted,) = condition.values
    if isinstance(wanted, str):
        return lambda value: value == wanted
    if isinstance(wanted, bool):
        return lambda value: value is wanted
    return lambda value: _same(value, wanted)


def _in(condition: Condition) -> Test:
    wanted = condition.values
    if all(isinstance(value, str) for value in wanted):
        words = frozenset(wanted)
        return lambda value: type(value) is str and value in words
    return lambda value: any(_same(value, one) for one in wanted)


def _not(inner: Callable[[Condition], Test]) -> Callable[[Condition], Test]:
    def compiled(condition: Condition) -> Test:
        test = inner(condition)
        return lambda value: not test(value)

    return compiled


def _regex(condition: Condition) -> Test:
    searches = [regex(value).search for value in condition.values]

    def test(value: Any) -> bool:
        if type(value) is not str:
            return False
        text = encoded(value)
        return any(search(text) is not None for search in searches)

    return test


def _exists(condition: Condition) -> Test:
    (wanted,) = condition.values
    if not isinstance(wanted, bool):
        raise ConditionError(f"{condition.field.path}.exists takes true or false, not {wanted!r}")
    return lambda value: (value not in (None, "")) == wanted


def _compare(condition: Condition) -> Test:
    compare, (wanted,) = _COMPARE[condition.op], condition.values
    if isinstance(wanted, bool | str):
        raise ConditionError(f"{condition.field.path}.{condition.op} takes a number, not {wanted!r}")
    return lambda value: type(value) in (int, float) and compare(value, wanted)


def _text(condition: Condition) -> Test:
    compare, words = _TEXT[condition.op], condition.values
    if not all(isinstance(word, str) for word in words):
        raise ConditionError(f"{condition.field.path}.{condition.op} takes text, not {words!r}")
    return lambda value: type(value) is str and any(compare(value, word) for word in words)


_TESTS: dict[str, Callable[[Condition], Test]] = {
    "eq": _equal,
    "in": _in,
    "not_in": _not(_in),
    "regex": _regex,
    "not_regex": _not(_regex),
    "exists": _exists,
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_TEXT, _text),
}
