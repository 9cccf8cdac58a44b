"""Reads the configuration: defaults, then agenttrace.yaml, then the environment; and says where each thing lies on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel

from schemas.config import Config
from schemas.errors import UserError
from services import yamlfile

ENV_PREFIX = "AGENTTRACE_"
OWN_VARIABLES = frozenset(
    {
        "AGENTTRACE_HOME",
        "AGENTTRACE_CONFIG",
        "AGENTTRACE_SOCKET",
        "AGENTTRACE_HASH_KEY",
        "AGENTTRACE_HASH_SALT",
        "AGENTTRACE_DB_DSN",
    }
)
"""Variables with a meaning of their own; every other AGENTTRACE_ name with `__` in it sets a configuration key."""

_MIN_KEY = 16
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what to tell its owner about it."""

    config: Config
    source: str
    warnings: tuple[str, ...] = ()


def home(env: Mapping[str, str] = os.environ) -> Path:
    """The state folder: AGENTTRACE_HOME, else ~/.agenttrace. Raises UserError for a relative one, which hooks would not find."""
    given = env.get("AGENTTRACE_HOME")
    if given and not Path(given).is_absolute():
        raise UserError(f"AGENTTRACE_HOME must be an absolute path, not {given!r}: hooks run in other folders")
    return Path(given) if given else Path.home() / ".agenttrace"


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Loaded:
    """The configuration in force. Without `path`: AGENTTRACE_CONFIG, else <home>/agenttrace.yaml if there is one.

    Raises UserError with `file:line: what` for everything that is wrong, unknown keys with the nearest valid one.
    """
    named = path or (Path(env["AGENTTRACE_CONFIG"]) if env.get("AGENTTRACE_CONFIG") else None)
    file = named or home(env) / "agenttrace.yaml"
    warnings: list[str] = []
    document: Any = None
    data: Any = {}
    if named is not None or file.exists():
        document = yamlfile.read(file)
        data = _section(document, file)
        data = _expand(data, env, warnings)
    unknown = _overlay(data, env)
    config = yamlfile.check(
        Config,
        data,
        source=str(file) if document is not None else "environment",
        document=document,
        prefix=("agenttrace",),
    )
    if unknown:
        raise UserError("\n".join(unknown))
    return Loaded(config, str(file) if document is not None else "defaults", tuple(warnings))


def _section(document: Any, file: Path) -> dict[str, Any]:
    plain = yamlfile.plain(document) if document is not None else {}
    if not isinstance(plain, dict):
        raise UserError(f"{file}:1: the file must be a mapping with the top key 'agenttrace'")
    for key in plain:
        if key != "agenttrace":
            line = yamlfile.line_of(document, (key,)) or 1
            below = "; it belongs below the top key 'agenttrace'" if key in Config.model_fields else None
            raise UserError(f"{file}:{line}: unknown key '{key}'{below or yamlfile.nearest(key, ['agenttrace'])}")
    section = plain.get("agenttrace") or {}
    if not isinstance(section, dict):
        raise UserError(f"{file}:1: 'agenttrace' must be a mapping")
    return section


def _expand(value: Any, env: Mapping[str, str], warnings: list[str], path: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, env, warnings, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, env, warnings, path) for item in value]
    if isinstance(value, str):
        missing = [name for name in _REFERENCE.findall(value) if name not in env]
        if missing:
            warnings.append(f"{path} names the environment variable {', '.join(missing)}, which is not set")
            return None
        return _REFERENCE.sub(lambda match: env[match.group(1)], value)
    return value


def _overlay(data: dict[str, Any], env: Mapping[str, str]) -> list[str]:
    problems = []
    for name, text in sorted(env.items()):
        if not name.startswith(ENV_PREFIX) or name in OWN_VARIABLES or "__" not in name:
            continue
        path = name.removeprefix(ENV_PREFIX).lower().split("__")
        is_list, problem = _look_up(path)
        if problem:
            problems.append(f"environment: {name}: {problem}")
            continue
        node = data
        for step in path[:-1]:
            if not isinstance(node.get(step), dict):
                node[step] = {}
            node = node[step]
        node[path[-1]] = tuple(part.strip() for part in text.split(",") if part.strip()) if is_list else text
    return problems


def _look_up(path: list[str]) -> tuple[bool, str | None]:
    """Whether the key at `path` holds a list, and what is wrong with the path."""
    model: type[BaseModel] | None = Config
    annotation: Any = Config
    for depth, step in enumerate(path):
        name = ".".join(path[: depth + 1])
        if model is None:
            return False, f"'{'.'.join(path[:depth])}' has no keys below it"
        if step not in model.model_fields:
            return False, f"unknown key '{name}'{yamlfile.nearest(step, list(model.model_fields))}"
        annotation = model.model_fields[step].annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    if model is not None:
        return False, f"'{'.'.join(path)}' is a section, name a key in it"
    return get_origin(annotation) is tuple, None


def hash_key(folder: Path, env: Mapping[str, str] = os.environ) -> tuple[bytes, str]:
    """(key, key id) of all keyed hashes: AGENTTRACE_HASH_KEY, else a random one made once in `folder` (hash.key, 0600).

    Hosts that share the key can compare hashes; the id, 8 hex digits derived from the key, says whether two do.
    Raises UserError for a key of less than 16 bytes or a file that cannot be made.
    """
    text = env.get("AGENTTRACE_HASH_KEY")
    if text is not None:
        key = text.encode()
        if len(key) < _MIN_KEY:
            raise UserError(f"AGENTTRACE_HASH_KEY has {len(key)} bytes; a key needs at least {_MIN_KEY}")
    else:
        key = _own_key(folder / "hash.key")
    return key, hashlib.sha256(b"agenttrace key id\0" + key).hexdigest()[:8]


def _own_key(path: Path) -> bytes:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = secrets.token_hex(32)
        with (
            contextlib.suppress(FileExistsError),
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(made + "\n")
        key = path.read_text(encoding="ascii").strip().encode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the hash key {path} cannot be made or read ({error})", exit_code=os.EX_CANTCREAT) from None
    if len(key) < _MIN_KEY:
        raise UserError(f"the hash key in {path} is cut short; remove the file to get a new one")
    return key
