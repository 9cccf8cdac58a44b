"""What capture costs: redaction in MB/s and per text, facts per call, against orjson and tree-sitter alone in the
same run.

`python tests/bench/bench_capture.py` prints the figures as JSON. Times are CPU time of the thread, so that a busy
machine blurs them less; sizes are bytes. Sides are interleaved in five rounds, medians reported.
"""

from __future__ import annotations

import base64
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson
import tree_sitter_bash
from tree_sitter import Language, Parser

from services.capture.content import Capture, CaptureSettings
from services.capture.redaction import RulePack

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


def _texts(size: int, total: int) -> list[str]:
    """Mixed tool output, no text like another: half of it logs and code, the rest JSON, listings, diffs and hashes."""
    r = random.Random(size)
    kinds: list[tuple[Callable[[random.Random], str], int]] = [
        (_log, 5),
        (_code, 5),
        (_json, 3),
        (_listing, 3),
        (_diff, 2),
        (_blob, 1),
    ]
    texts = []
    for _ in range(max(total // size, 3)):
        make = r.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        parts, n = [], 0
        while n < size:
            parts.append(make(r) if r.random() < 0.9 else r.choices([k for k, _ in kinds])[0](r))
            n += len(parts[-1])
        texts.append("".join(parts)[:size])
    return texts


def _timed(work: Callable[[Any], Any], items: list[Any]) -> list[float]:
    taken = []
    for item in items:
        start = time.thread_time_ns()
        work(item)
        taken.append((time.thread_time_ns() - start) / 1000)
    return taken


def _row(rounds: list[list[float]], size: int) -> dict[str, float]:
    """MB/s, and microseconds per text at the median and the 95th percentile: each the median of the rounds."""
    return {
        "mb_per_s": round(statistics.median(size * len(taken) / sum(taken) for taken in rounds), 1),
        "p50_us": round(statistics.median(statistics.median(taken) for taken in rounds), 1),
        "p95_us": round(statistics.median(statistics.quantiles(taken, n=20)[18] for taken in rounds), 1),
    }


def _redaction(capture: Capture) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    gate = capture.redactor._scanner._gate
    for size, total in ((2048, 2 << 20), (65536, 6 << 20), (1 << 20, 6 << 20)):
        texts = _texts(size, total)
        sides: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
            "orjson": (orjson.dumps, texts),
            "gate": (gate.hits, [t.encode() for t in texts]),
            "redact": (capture.redactor.text, texts),
            "redact_json": (
                capture.redactor.value,
                [{"result": {"content": [{"type": "text", "text": t}]}} for t in texts],
            ),
        }
        taken: dict[str, list[list[float]]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, (work, items) in sides.items():
                taken[name].append(_timed(work, items))
        figures[str(size)] = {name: _row(rounds, size) for name, rounds in taken.items()}
    return figures


def _calls(capture: Capture) -> dict[str, Any]:
    parser = Parser(Language(tree_sitter_bash.language()))
    inputs = [{"command": line, "description": "run it"} for line in LINES] * 40
    event = {
        "event_id": "0199aaaa-1111-7222-8333-444455556666",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "timestamp": "2026-01-13T10:00:00.123Z",
        "input": {
            "size_bytes": 44,
            "hash": "hmac-sha256:k:" + "a1" * 32,
            "summary": '{"command":"ls -la"}',
            "redactions": {},
        },
        "native": {"transcript_path": "/home/dev/.runtime/projects/x/0c41c241-8fc4-4f7b-b3ed-2e83a6e147b2.jsonl"},
    }
    sides: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "tree_sitter_parse": (lambda v: parser.parse(v["command"].encode()), inputs),
        "facts": (lambda v: capture.facts("shell", "Bash", v, "/home/dev/project"), inputs),
        "content": (lambda v: capture.content(v, direction="input"), [dict(v) for v in inputs]),
        "scrub": (capture.scrub, [dict(event) for _ in inputs]),
        "ident": (capture.ident, ["toolu_01A09q90qw90lq917835lq9"] * len(inputs)),
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, (work, items) in sides.items():
            taken[name].append(_timed(work, items))
    rows = {name: _row(rounds, 1) for name, rounds in taken.items()}
    for row in rows.values():
        del row["mb_per_s"]
    return rows


def run() -> dict[str, Any]:
    """The figures: start-up in seconds, redaction by text size, and calls in microseconds."""
    start = time.thread_time()
    pack = RulePack.default()
    loaded = time.thread_time()
    capture = Capture(CaptureSettings(hash_key=KEY, key_id="bench"), pack)
    return {
        "rules": len(pack.rules),
        "load_rules_s": round(loaded - start, 3),
        "compile_gate_s": round(time.thread_time() - loaded, 3),
        "redaction": _redaction(capture),
        "calls_us": _calls(capture),
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
