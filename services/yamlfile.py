"""YAML files of people, checked against a model, with errors that name file, line and the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from schemas.errors import UserError

M = TypeVar("M", bound=BaseModel)


def read(path: Path) -> Any:
    """The file's document with its line numbers. Raises UserError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", exit_code=66) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})", exit_code=65) from None
    try:
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except (YAMLError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def plain(node: Any) -> Any:
    """The document as plain dicts, lists and scalars."""
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    return node


def check(model: type[M], data: Any, *, source: str, document: Any = None, prefix: tuple[str, ...] = ()) -> M:
    """`data` as `model`; raises one UserError with a line for each problem, `file:line: what`.

    `document` is what `read` gave, for the line numbers; `prefix` the keys above `data` in it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError("\n".join(_problems(model, error, source, document, prefix))) from None


def line_of(document: Any, path: tuple[str | int, ...]) -> int | None:
    """Line (from 1) of the key or item at `path`, or of the nearest one above it that the file has."""
    line: int | None = None
    node = document
    for step in path:
        if isinstance(node, CommentedMap) and step in node:
            line = node.lc.key(step)[0] + 1
            node = node[step]
        elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
            line = node.lc.item(step)[0] + 1
            node = node[step]
        else:
            break
    return line


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?` or the empty text."""
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def _problems(
    model: type[BaseModel], error: ValidationError, source: str, document: Any, prefix: tuple[str, ...]
) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        path = tuple(problem["loc"])
        line = line_of(document, (*prefix, *path))
        where = f"{source}:{line}" if line else source
        name = ".".join(str(part) for part in path)
        if problem["type"] == "extra_forbidden":
            known = list(_fields_at(model, path[:-1]))
            yield f"{where}: unknown key '{name}'{nearest(str(path[-1]), known)}"
        else:
            yield f"{where}: {name}: {problem['msg']}"


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    current: Any = model
    for step in path:
        if isinstance(step, int):
            continue
        found = _models_in(current.model_fields[step].annotation) if step in current.model_fields else []
        if not found:
            return []
        current = found[0]
    return list(current.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
