"""The rule pack: secret patterns as data, checked at load so that a rule that cannot work never runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from schemas.errors import UserError
from services.capture.redaction.checks import CHECKS
from services.capture.redaction.keys import Judge

Database = Literal["words", "numbers", "shapes"]
# A gate pattern fires as soon as the shortest match is complete, not once more for each further byte.
_OPEN_END = re.compile(r"\{([1-9]\d*),\d*\}(\)*)$")
# Dropped from samples at load: no file of this project then holds a string that a secret scanner takes for a live key.
SPLIT = "¦"


class RuleError(UserError):
    """A rule that cannot be used; the message names file, line and rule."""


class Samples(BaseModel):
    """Texts the rule must and must not match."""

    model_config = ConfigDict(extra="forbid", strict=True)
    true: list[str] = Field(min_length=1)
    false: list[str] = Field(min_length=1)


class RuleSpec(BaseModel):
    """One rule as written. Patterns are RE2 over UTF-8 bytes; group 1, where there is one, is the secret.

    With `judge`, of the groups that took part the first is a key name and the last its value. `gate` is a cheaper
    pattern that matches wherever `pattern` does, ending at most WINDOW_BEFORE bytes after the match begins; `window`:
    how many bytes behind that a match can need before it is complete (0: begins or ends anywhere, the whole text is
    searched); `database` says which gate database holds it (rules without a literal slow the others down). `allow`: a
    secret it matches whole is none. `normalise: block` fingerprints key material without its line layout.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    kind: str = Field(pattern=r"^[a-z0-9_]{2,32}$")
    pattern: str
    gate: str | None = None
    window: int = Field(default=512, ge=0)
    database: Database = "words"
    check: str | None = None
    min_entropy: float | None = None
    allow: str | None = None
    judge: Judge | None = None
    normalise: Literal["block"] | None = None
    rank: int = 1
    samples: Samples


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule. `rank` decides which kind an overlap is called: higher wins."""

    spec: RuleSpec
    pattern: Any
    allow: Any
    gate: bytes
    rank: int
    groups: int


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return options


def _unsafe(pattern: str) -> str | None:
    """Why a pattern could match NUL, which separates values and hides what is already redacted; None if it cannot."""
    i, n = 0, len(pattern)
    while i < n:
        c = pattern[i]
        if c == "\\":
            if pattern[i + 1 : i + 2] in ("S", "W", "D", "C", "N", "B", "P"):
                return f"\\{pattern[i + 1]} can match NUL; write a class"
            i += 2
            continue
        if c == ".":
            return "'.' can match NUL; write a class without \\x00"
        if c == "[":
            j = i + 1
            while j < n and (pattern[j] != "]" or j == i + 1 or (j == i + 2 and pattern[i + 1] == "^")):
                j += 2 if pattern[j] == "\\" else 1
            body = pattern[i + 1 : j]
            # One character of any kind is a border; only a repeated class could run across values.
            if body.startswith("^") and "\\x00" not in body and pattern[j + 1 : j + 2] in ("*", "+", "{"):
                return f"[{body}] can match NUL; add \\x00"
            i = j
        i += 1
    return None


class RulePack:
    """An immutable set of compiled rules."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.kinds = frozenset(r.spec.kind for r in rules)

    @classmethod
    def default(cls) -> RulePack:
        """The rules this package ships."""
        folder = resources.files(__package__) / "rules"
        files = sorted((f.name, f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".yaml"))
        return cls.parse(files)

    @classmethod
    def load(cls, paths: list[Path]) -> RulePack:
        """Rules from files, in order. Raises RuleError naming file, line and rule."""
        return cls.parse([(str(p), p.read_text("utf-8")) for p in paths])

    @classmethod
    def parse(cls, files: list[tuple[str, str]]) -> RulePack:
        """Rules from (name, YAML text). Raises RuleError naming file, line and rule."""
        rules: list[Rule] = []
        seen: dict[str, str] = {}
        for name, text in files:
            for rule in _file(name, text):
                if rule.spec.id in seen:
                    at = _at(name, text, rule.spec.id)
                    raise RuleError(f"{at}: rule id {rule.spec.id} is already used in {seen[rule.spec.id]}")
                seen[rule.spec.id] = name
                rules.append(rule)
        return cls(tuple(rules))


def _at(name: str, text: str, rule_id: str) -> str:
    found = re.search(rf"^\s*-?\s*id:\s*{re.escape(rule_id)}\s*$", text, re.MULTILINE)
    return f"{name}:{text.count(chr(10), 0, found.start()) + 1}" if found else name


def _file(name: str, text: str) -> list[Rule]:
    try:
        doc = YAML(typ="safe").load(text)
    except MarkedYAMLError as e:
        line = f":{e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise RuleError(f"{name}{line}: not valid YAML: {e.problem or e.context}") from e
    if not isinstance(doc, dict) or not isinstance(doc.get("rules"), list):
        raise RuleError(f"{name}: expected a mapping with a list `rules`")
    unknown = sorted(set(doc) - {"rules", "rank", "define"})
    if unknown:
        raise RuleError(f"{name}: unknown key {unknown[0]!r}; known: rank, define, rules")
    define: dict[str, str] = doc.get("define", {})
    return [_rule(name, text, raw, define, doc.get("rank", 1)) for raw in doc["rules"]]


def _rule(name: str, text: str, raw: Any, define: dict[str, str], rank: int) -> Rule:
    rule_id = str(raw.get("id", "?")) if isinstance(raw, dict) else "?"
    where = f"{_at(name, text, rule_id)}: rule {rule_id}"
    if isinstance(raw, dict):
        raw = {"rank": rank, **raw}
        samples = raw.get("samples")
        if not isinstance(samples, dict) or not samples.get(True) or not samples.get(False):
            raise RuleError(f"{where} has no samples; add `samples: {{true: […], false: […]}}`, at least one of each")
        raw["samples"] = {
            str(k).lower(): [s.replace(SPLIT, "") if isinstance(s, str) else s for s in v] for k, v in samples.items()
        }
    try:
        spec = RuleSpec.model_validate(raw)
    except ValidationError as e:
        first = e.errors()[0]
        raise RuleError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    if spec.check is not None and spec.check not in CHECKS:
        raise RuleError(f"{where}: unknown check {spec.check!r}; known: {', '.join(sorted(CHECKS))}")
    pattern = _expand(spec.pattern, define)
    why = _unsafe(pattern)
    if why is not None:
        raise RuleError(f"{where}: {why}")
    try:
        compiled = re2.compile(pattern.encode(), _options())
        allow = re2.compile(spec.allow.encode(), _options()) if spec.allow else None
    except re2.error as e:
        reason = e.args[0].decode("utf-8", "replace") if e.args and isinstance(e.args[0], bytes) else str(e)
        raise RuleError(f"{where}: RE2 refuses the pattern: {reason}") from e
    if spec.judge is not None and compiled.groups < 2:
        raise RuleError(f"{where}: `judge` needs two groups, the key name and the value")
    gate = _OPEN_END.sub(r"{\1}\2", _expand(spec.gate, define) if spec.gate else pattern)
    return Rule(spec, compiled, allow, gate.encode(), spec.rank, compiled.groups)


def _expand(pattern: str, define: dict[str, str]) -> str:
    for key, value in define.items():
        pattern = pattern.replace("{" + key + "}", value)
    return pattern
