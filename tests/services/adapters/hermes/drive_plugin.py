"""Loads the plugin as Hermes does and calls its callbacks with hook calls read from standard input, one JSON a line.

Prints what came back as one JSON line. Needs nothing but the standard library, like the plugin.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Registry:
    """What `tools.registry` of the running agent knows."""

    @staticmethod
    def get_toolset_for_tool(name: str) -> str:
        return "mcp-files.v2" if name.startswith("mcp__files_v2__") else "mcp-everything"


class Odd:
    """A value that json cannot write, with a secret in its fields."""

    def __init__(self) -> None:
        self.key = "planted words"
        self.me = self


class Ctx:
    """The part of Hermes's plugin context that the plugin uses."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}

    def register_hook(self, name: str, callback: Any) -> None:
        self.hooks[name] = callback


def load(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location(
        "hermes_plugin_agenttrace", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    folder, ending = sys.argv[1:]
    tools = type(sys)("tools")
    tools.registry = type(sys)("tools.registry")  # type: ignore[attr-defined]
    tools.registry.registry = Registry()
    sys.modules |= {"tools": tools, "tools.registry": tools.registry}
    ctx = Ctx()
    load(Path(folder)).register(ctx)
    returned = calls = 0
    slowest = 0.0
    live: dict[str, Any] = {}
    for line in sys.stdin:
        row = json.loads(line)
        callback = ctx.hooks.get(row["hook"])
        if callback is None:
            continue
        kwargs = row["kwargs"]
        if kwargs.pop("odd", False):
            circular: list[Any] = []
            circular.append(circular)
            kwargs |= {"object": Odd(), "circular": circular, "keys": {Odd: 1}, "text": "\ud800", "bytes": b"x"}
        began = time.perf_counter()
        if row.get("thread", "main") == "main":
            back = callback(**kwargs)
        else:
            found: list[Any] = []
            worker = threading.Thread(target=lambda: found.append(callback(**kwargs)), name=row["thread"])  # noqa: B023
            worker.start()
            worker.join()
            back = found[0]
        slowest = max(slowest, (time.perf_counter() - began) * 1000)
        returned += back is not None
        calls += 1
        live = kwargs
    live.clear()  # what the agent does to its own objects afterwards must change nothing
    print(json.dumps({"calls": calls, "returned": returned, "slowest": slowest}), flush=True)
    if ending == "exit":
        raise SystemExit(0)


if __name__ == "__main__":
    main()
