"""Field paths of rules, checked against the event models, and how their values are read from an event's JSON.

A rule is checked against the contract when it is loaded, so a misspelt field is an error with a hint and not a rule
that never speaks. What an event leaves out because it has its default is read as that default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from schemas.events import Event

_FREE = object()
"""Stands for the type of what may hold anything: labels and native."""


def _models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for model in get_args(get_args(Event)[0]):
        for name in get_args(model.model_fields["event_name"].annotation):
            found[name] = model
    return found


LISTS = (list, tuple)
"""How a list may come: from JSON, or from a model that was not yet written as JSON."""

MODELS = _models()
"""Event name to its model."""


class FieldError(ValueError):
    """A path or an event name that no event has; the message names the nearest one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A resolved path. `list_at` is how many of its parts lead to a list of objects, or None if there is none.

    `plural`: what stands at its end is a list. `few`: it has one of a few values that the contract names.
    """

    parts: tuple[str, ...]
    default: Any
    list_at: int | None
    plural: bool = False
    few: bool = False

    @property
    def path(self) -> str:
        """The path as written."""
        return ".".join(self.parts)


def nearest(word: str, known: Iterator[str] | list[str]) -> str:
    """`; did you mean x?`, or nothing if nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def check_event(name: str) -> None:
    """Raise FieldError unless there is such an event."""
    if name not in MODELS:
        raise FieldError(f"no event {name!r}{nearest(name, list(MODELS))}")


def resolve(path: str, event_names: list[str]) -> Field:
    """The field of this path in all events of these names. Raises FieldError if one of them has no such field."""
    parts = tuple(path.split("."))
    fields = {_resolve(parts, MODELS[name], name) for name in event_names}
    if len({field.list_at for field in fields}) > 1:
        raise FieldError(f"{path} is a list in some of {', '.join(event_names)} and not in others")
    first = fields.pop()
    return first if not fields else Field(parts, None, first.list_at, first.plural, first.few)


def _resolve(parts: tuple[str, ...], model: type[BaseModel], event_name: str) -> Field:
    kind: Any = model
    default: Any = None
    list_at, is_list = None, False
    for place, part in enumerate(parts):
        if kind is _FREE:
            return Field(parts, None, list_at)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            raise FieldError(f"{'.'.join(parts[:place])} has no field {part!r}: it is a plain value")
        field = kind.model_fields.get(part)
        if field is None:
            where = ".".join(parts[:place]) or event_name
            raise FieldError(f"{where} has no field {part!r}{nearest(part, list(kind.model_fields))}")
        default = None if field.default is PydanticUndefined else field.default
        kind, is_list = _unwrap(field.annotation)
        if is_list and isinstance(kind, type) and issubclass(kind, BaseModel) and place + 1 < len(parts):
            if list_at is not None:
                raise FieldError(f"{'.'.join(parts)} goes through two lists")
            list_at = place + 1
    few = kind is bool or get_origin(kind) is Literal
    return Field(parts, default if isinstance(default, bool | int | str) else None, list_at, is_list, few)


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """The type inside Optional, Annotated and tuple[…, ...], and whether it was in a tuple."""
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        return _unwrap(inner[0]) if len(inner) == 1 else (None, False)
    if origin is tuple:
        return _unwrap(get_args(annotation)[0])[0], True
    if origin is dict:
        return _FREE, False
    if hasattr(annotation, "__metadata__"):
        return _unwrap(annotation.__origin__)
    return annotation, False


def reader(parts: tuple[str, ...], default: Any = None) -> Callable[[Mapping[str, Any]], Any]:
    """A function that gives the value at a path, or the default where the path ends early or in nothing."""
    if len(parts) == 1:
        (only,) = parts

        def one(event: Mapping[str, Any]) -> Any:
            value = event.get(only)
            return default if value is None else value

        return one
    if len(parts) == 2:
        first, second = parts

        def two(event: Mapping[str, Any]) -> Any:
            value = event.get(first)
            if type(value) is not dict:
                return default
            value = value.get(second)
            return default if value is None else value

        return two

    def many(event: Mapping[str, Any]) -> Any:
        value: Any = event
        for part in parts:
            if type(value) is not dict:
                return default
            value = value.get(part)
        return default if value is None else value

    return many
