"""What capture costs: redaction in MB/s and per text, facts per shell line and by length, and all that the hooks of one
call ask of it, against orjson and tree-sitter alone in the same run.

`python tests/bench/bench_capture.py` prints the figures as JSON. Times are CPU time of the thread, so that a busy
machine blurs them less; sizes are bytes. Sides are interleaved in five rounds; a figure is the median of the rounds,
`spread` the least and the most of them.
"""

from __future__ import annotations

import base64
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import tree_sitter_bash
from tree_sitter import Language, Parser

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from schemas.events import to_json
from schemas.identity import new_delivery_id
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS, normalise
from services.capture.content import Capture, CaptureSettings
from services.capture.redaction import RulePack
from tests.bench.bench_collector import payloads

ROUNDS = 5
KEY = b"k" * 32
LINES = [
    "ls -la",
    "git status --short && git diff --stat",
    "npm test -- --watch=false",
    "cat src/app/main.py | head -n 50",
    "grep -rn 'def handler' src tests | wc -l",
    "cd /home/dev/project && python -m pytest -q tests/unit",
    "docker compose up -d --build api worker",
    "curl -sS -X POST https://api.example.net/v1/items -H 'Content-Type: application/json' -d @body.json",
    "find . -name '*.pyc' -not -path './.venv/*' -exec rm -f {} +",
    "kubectl -n prod get pods -o wide | grep api",
    'for f in *.log; do gzip -9 "$f"; done',
    "pip install -r requirements.txt && pip list --outdated",
]


def _log(r: random.Random) -> str:
    return (
        f"2026-01-{r.randint(1, 28):02}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:07.{r.randint(0, 999):03}Z"
        f" {r.choice(['INFO', 'DEBUG', 'WARN'])} [worker-{r.randint(1, 9)}] com.shop.Handler"
        f" request_id={r.getrandbits(128):032x}"
        f" path=/api/v1/items/{r.randint(1, 99999)} status=200 dur={r.random() * 100:.2f}ms bytes={r.randint(1, 10**7)}"
        f" client=10.0.{r.randint(0, 255)}.{r.randint(0, 255)}:{r.randint(1024, 65535)}\n"
    )


def _code(r: random.Random) -> str:
    name = r.choice(["load", "parse", "render", "check_token", "connect", "resolve"])
    return (
        f"    def {name}_{r.randint(0, 99)}(self, value: str, *, limit: int = {r.randint(1, 4096)})"
        " -> dict[str, Any]:\n"
        f'        """Reads `{name}` and returns what it holds."""\n'
        "        if value is None or self.options.password is None:\n"
        f'            raise ValueError(f"{{value!r}} is no {name}\\n")\n'
        f"        return {{key: item.strip() for key, item in self.items[:{r.randint(1, 99)}]}}\n\n"
    )


def _json(r: random.Random) -> str:
    inner = orjson.dumps({"id": r.randint(1, 10**9), "text": 'line one\nline "two"\n', "ok": True}).decode()
    row = {
        "call_id": f"call_{r.getrandbits(96):024x}",
        "name": "read_file",
        "arguments": inner,
        "usage": {"input_tokens": r.randint(1, 9999)},
    }
    return orjson.dumps(row).decode() + "\n"


def _listing(r: random.Random) -> str:
    size, minute, package = r.randint(1, 10**7), r.randint(0, 59), r.randint(1, 999)
    return f"-rw-r--r--  1 dev dev {size:>9} Jan 13 10:{minute:02} node_modules/pkg-{package}/lib/index.js\n"


def _diff(r: random.Random) -> str:
    return r.choice("+- ") + _code(r)[:90].replace("\n", " ") + "\n"


def _blob(r: random.Random) -> str:
    return f"integrity sha512-{base64.b64encode(r.randbytes(64)).decode()} commit {r.getrandbits(160):040x}\n"


_PIECE = 8192
_KINDS: list[tuple[Callable[[random.Random], str], int]] = [
    (_log, 5),
    (_code, 5),
    (_json, 3),
    (_listing, 3),
    (_diff, 2),
    (_blob, 1),
]


def _mixed(total: int) -> str:
    """Tool output, no part like another: of each 152 KB, 40 are logs, 40 code, 24 JSON, 24 listings, 16 diffs and 8
    hashes, in pieces of 8 KB."""
    r = random.Random(7)
    pieces: list[str] = []
    while len(pieces) * _PIECE < total:
        kinds = [kind for kind, weight in _KINDS for _ in range(weight)]
        r.shuffle(kinds)
        for kind in kinds:
            lines: list[str] = []
            n = 0
            while n < _PIECE:
                lines.append(kind(r))
                n += len(lines[-1])
            pieces.append("".join(lines)[: _PIECE - 1] + "\n")
    return "".join(pieces)[:total]


def _timed(work: Callable[[Any], Any], items: list[Any]) -> list[float]:
    taken = []
    for item in items:
        start = time.thread_time_ns()
        work(item)
        taken.append((time.thread_time_ns() - start) / 1000)
    return taken


Sides = dict[str, tuple[Callable[[Any], Any], list[Any]]]


def _rounds(sides: Sides) -> dict[str, list[list[float]]]:
    """Microseconds of each item of each side, in interleaved rounds. Sides with lists of lists get a new list each
    round."""
    taken: dict[str, list[list[float]]] = {name: [] for name in sides}
    for n in range(ROUNDS):
        for name, (work, items) in sides.items():
            taken[name].append(_timed(work, items[n] if isinstance(items[0], list) else items))
    return taken


def _row(rounds: list[list[float]], size: int = 0) -> dict[str, Any]:
    """Microseconds per item at the median and the 95th percentile, and for texts of a size MB/s."""
    row: dict[str, Any] = {}
    if size:
        row |= _figure("mb_per_s", [size * len(taken) / sum(taken) for taken in rounds])
    row |= _figure("p50_us", [statistics.median(taken) for taken in rounds])
    return row | _figure("p95_us", [statistics.quantiles(taken, n=20, method="inclusive")[18] for taken in rounds])


def _figure(name: str, values: list[float]) -> dict[str, Any]:
    return {
        name: round(statistics.median(values), 1),
        f"{name}_spread": [round(min(values), 1), round(max(values), 1)],
    }


def _redaction(capture: Capture) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    gate = capture.redactor._scanner._gate
    mixed = _mixed(6 << 20)
    for size, count in ((2048, 1024), (65536, 96), (1 << 20, 6)):
        # Of the same bytes, so that sizes compare: every third piece of 2 KB, all of 64 KB and 1 MB.
        step = max(len(mixed) // count // size, 1) * size
        texts = [mixed[at : at + size] for at in range(0, len(mixed), step)][:count]
        taken = _rounds(
            {
                "orjson": (orjson.dumps, texts),
                "gate": (gate.hits, [t.encode() for t in texts]),
                "redact": (capture.redactor.text, texts),
                "redact_json": (
                    capture.redactor.value,
                    [{"result": {"content": [{"type": "text", "text": t}]}} for t in texts],
                ),
            }
        )
        figures[str(size)] = {name: _row(rounds, size) for name, rounds in taken.items()}
    return figures


def _fresh(count: int) -> Iterator[list[dict[str, str]]]:
    """Typical calls for each round; none is like one before, which Capture would know again."""
    for n in range(ROUNDS):
        yield [{"command": line, "description": f"run it {n} {i}"} for i in range(count) for line in LINES]


def _facts(capture: Capture) -> dict[str, Any]:
    parser = Parser(Language(tree_sitter_bash.language()))
    fresh = list(_fresh(40))

    def facts(value: Any) -> None:
        capture.facts("shell", "Bash", value, "/home/dev/project")

    sides: Sides = {
        "tree_sitter_parse": (lambda v: parser.parse(v["command"].encode()), fresh),
        "facts": (facts, fresh),
        "facts_again": (facts, fresh[0][: len(LINES)] * 40),
        "content": (
            lambda v: capture.content(v, direction="input"),
            [[{**v, "n": n} for v in values] for n, values in enumerate(fresh)],
        ),
    }
    figures: dict[str, Any] = {name: _row(rounds) for name, rounds in _rounds(sides).items()}
    # One line of so many bytes: commands, words, quotes and substitutions as they come.
    once = " && ".join(LINES) + ' && echo "$(git rev-parse HEAD)" $HOME && '
    long: Sides = {}
    for size in (1 << 10, 1 << 14, 1 << 18, 1 << 20):
        line = (once * (size // len(once) + 1))[:size]
        count = 20 if size < 1 << 18 else 1
        long[f"line_{size}"] = (facts, [[{"command": f"true {n} {i}; {line}"} for i in range(count)] for n in range(5)])
    for name, rounds in _rounds(long).items():
        figures[name] = _figure("p50_us", [statistics.median(taken) for taken in rounds])
    return figures


class _Recording:
    """A Capture that notes what is asked of it."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._capture, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.asked.append((name, args, kwargs))
            return method(*args, **kwargs)

        return call if callable(method) else method


def _hooks(settings: CaptureSettings, pack: RulePack) -> dict[str, Any]:
    """All that the adapter and the journal ask of Capture for the start and the end of calls as bench_collector sends
    them."""
    recording, calls, now = _Recording(Capture(settings, pack)), CallTable(), time.time_ns() // 1_000_000
    hooks = []
    for body in islice(payloads(), 800):
        recording.asked = []
        context = Context(
            runtime="claude_code",
            adapter=ADAPTERS["claude_code"].contract,
            delivery_id=new_delivery_id(now),
            happened_ms=now,
            observed_ms=now,
            capture=recording,  # type: ignore[arg-type]
            calls=calls,
        )
        for event in normalise(body, context):
            recording.scrub(to_json(event))
        hooks.append(recording.asked)
    whole: dict[str, list[list[float]]] = {"pre": [], "post": []}
    parts: dict[str, dict[str, list[float]]] = {"pre": {}, "post": {}}
    for _ in range(ROUNDS):
        capture = Capture(settings, pack)
        taken: dict[str, list[Counter[str]]] = {"pre": [], "post": []}
        for n, asked in enumerate(hooks):
            spent: Counter[str] = Counter()
            for name, args, kwargs in asked:
                start = time.thread_time_ns()
                getattr(capture, name)(*args, **kwargs)
                spent[name] += time.thread_time_ns() - start
            taken["post" if n % 2 else "pre"].append(spent)
        for side, hook in taken.items():
            whole[side].append([sum(spent.values()) / 1000 for spent in hook])
            for name in hook[-1]:
                parts[side].setdefault(name, []).append(statistics.median(spent[name] for spent in hook) / 1000)
    return {
        side: _row(rounds) | {f"{name}_us": round(statistics.median(v), 1) for name, v in parts[side].items()}
        for side, rounds in whole.items()
    }


def run() -> dict[str, Any]:
    """The figures: start-up in seconds, redaction by text size, facts by line, and hooks by side."""
    start = time.thread_time()
    pack = RulePack.default()
    loaded = time.thread_time()
    settings = CaptureSettings(hash_key=KEY, key_id="bench")
    capture = Capture(settings, pack)
    return {
        "rules": len(pack.rules),
        "load_rules_s": round(loaded - start, 3),
        "compile_gate_s": round(time.thread_time() - loaded, 3),
        "redaction": _redaction(capture),
        "facts": _facts(capture),
        "hooks": _hooks(settings, pack),
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
