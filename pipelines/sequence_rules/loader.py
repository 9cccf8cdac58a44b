"""Rule files to a rule pack: every mistake with file and line, the rule and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipelines.sequence_rules.compiled import CompiledRule, Loc, RuleError
from schemas.errors import UserError
from schemas.rules import CountWhen, MetricWhen, Rule, RuleFile, RulePack, Samples, Step, When

SHIPPED = Path(__file__).parent / "rules"
"""The rules that come with the product."""

_MODELS: dict[str, type[BaseModel]] = {
    "rules": Rule,
    "when": When,
    "sequence": Step,
    "count": CountWhen,
    "metric": MetricWhen,
    "samples": Samples,
}


def load_rules(paths: Iterable[Path | str] = (SHIPPED,)) -> RulePack:
    """The rules of files, and of the .yaml and .yml files of folders, as one pack.

    Raises UserError, one line, for the first mistake; it says how many more there are.
    """
    rules, problems = _read(paths)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(problems[0] + more)
    return RulePack(rules=tuple(rule for _, rule in rules))


def check(paths: Iterable[Path | str]) -> list[str]:
    """All mistakes in rule files, one line each; then, if there are none, what the samples show.

    A rule that has no samples is a `warning:`; everything else is a reason not to use the rules.
    """
    from pipelines.sequence_rules.samples import run_samples

    rules, problems = _read(paths)
    if problems:
        return problems
    for place, rule in rules:
        if rule.samples is None or not (rule.samples.positive and rule.samples.negative):
            problems.append(f"{place}: warning: rule {rule.id} has no samples that it must and must not match")
        problems += [f"{place}: {problem}" for problem in run_samples(rule)]
    return problems


def _read(paths: Iterable[Path | str]) -> tuple[list[tuple[str, Rule]], list[str]]:
    """Rules with their place (`file:line`), and mistakes."""
    rules: list[tuple[str, Rule]] = []
    problems: list[str] = []
    seen: dict[str, str] = {}
    for path in _files(paths):
        found, mistakes = _read_file(path)
        problems += mistakes
        for place, rule in found:
            if rule.id in seen:
                problems.append(f"{place}: rule {rule.id} is also at {seen[rule.id]}; ids are unique in a pack")
            seen.setdefault(rule.id, place)
        rules += found
    return rules, problems


def _files(paths: Iterable[Path | str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(file for file in path.iterdir() if file.suffix in {".yaml", ".yml"})
        else:
            files.append(path)
    return files


def _read_file(path: Path) -> tuple[list[tuple[str, Rule]], list[str]]:
    try:
        tree = YAML().load(path.read_text(encoding="utf-8"))
    except OSError as error:
        return [], [f"{path}: cannot be read: {error.strerror}"]
    except UnicodeDecodeError:
        return [], [f"{path}: is not UTF-8 text"]
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return [], [f"{path}:{line}: no valid YAML: {' '.join(str(error.problem or error.context).split())}"]
    except YAMLError as error:
        return [], [f"{path}: no valid YAML: {' '.join(str(error).split())}"]
    try:
        file = RuleFile.model_validate_json(orjson.dumps(_plain(tree)))
    except ValidationError as error:
        # A misspelt key also leaves the right one missing: what is unknown explains more.
        mistakes = sorted(
            {
                (_line(tree, mistake["loc"]), mistake["type"] != "extra_forbidden", _say(tree, mistake))
                for mistake in error.errors()
            }
        )
        return [], [f"{path}:{line}: {said}" for line, _, said in mistakes]
    except TypeError as error:
        return [], [f"{path}: holds a value that is no JSON: {error}"]
    problems = []
    for number, rule in enumerate(file.rules):
        try:
            CompiledRule(rule)
        except RuleError as error:
            place = _line(tree, ("rules", number, *error.loc))
            problems.append(f"{path}:{place}: rule {rule.id}: {error}")
    return [(f"{path}:{_line(tree, ('rules', n))}", rule) for n, rule in enumerate(file.rules)], problems


def _plain(node: Any) -> Any:
    """The tree as dicts, lists and scalars of Python."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _say(tree: Any, mistake: Any) -> str:
    """One mistake of the form, in words."""
    loc: Loc = mistake["loc"]
    where = ""
    if len(loc) > 1 and loc[0] == "rules" and isinstance(loc[1], int):
        rule = tree["rules"][loc[1]]
        name = rule.get("id") if isinstance(rule, dict) else None
        where = f"rule {name}: " if name else f"rule number {loc[1] + 1}: "
    if mistake["type"] == "extra_forbidden":
        key = str(loc[-1])
        keys = _keys_at(loc[:-1])
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        return f"{where}unknown key {key!r}; " + (
            f"did you mean {near[0]}?" if near else f"known are {', '.join(keys)}"
        )
    names = [part for part in loc if isinstance(part, str) and not part.startswith(("list[", "dict[", "constrained"))]
    path = ".".join(names[1:] if where else names)
    message = str(mistake["msg"]).removeprefix("Value error, ")
    return where + (f"{path}: " if path else "") + message


def _keys_at(loc: Sequence[str | int]) -> list[str]:
    for part in reversed(loc):
        if isinstance(part, str) and part in _MODELS:
            return list(_MODELS[part].model_fields)
    return list(RuleFile.model_fields)


def _line(tree: Any, loc: Sequence[str | int]) -> int:
    """Line, from 1, of the deepest part of a place that is in the tree."""
    line = 1
    node: Any = tree
    for part in loc:
        try:
            position = node.lc.item(part) if isinstance(part, int) else node.lc.key(part)
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            # A place names also what YAML does not have: the alternative of a union, or the only item of no list.
            continue
        line = position[0] + 1
    return line
