"""Turns the figures of a run into docs/benchmarks.md: what is promised beside what was measured, then every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

HEAD = """# Benchmarks

Written by `make bench`; do not edit. Figures are medians of interleaved rounds within one run on one machine. Compare the
ratios; absolute times belong to the machine below.
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure with a bound: `path` leads to it in the results of `bench`; `side` says which way is good."""

    bench: str
    path: tuple[str, ...]
    what: str
    side: Literal["≤", "≥", "<", ">"]
    bound: float
    unit: str

    def kept(self, value: float) -> bool:
        """Whether a measured value keeps it."""
        return {
            "≤": value <= self.bound,
            "≥": value >= self.bound,
            "<": value < self.bound,
            ">": value > self.bound,
        }[self.side]


PROMISES = (
    Promise("forwarder", ("c_socket", "p50_added"), "`agenttrace-hook` over `true`, P50", "≤", 2, "ms"),
    Promise("forwarder", ("c_socket", "p95_added"), "`agenttrace-hook` over `true`, P95", "≤", 5, "ms"),
    Promise("forwarder", ("sh_spool", "p95_added"), "the spooling sh over `true`, P95", "≤", 10, "ms"),
    Promise("collector", ("keep_alive_32", "hooks_per_s"), "collector, 32 connections", "≥", 2000, "hooks/s"),
    Promise("collector", ("keep_alive_1", "p95_ms"), "collector at the caller, one connection, P95", "<", 2, "ms"),
    Promise("collector", ("idle_rss_mib",), "collector, idle", "≤", 95.3, "MiB"),
    Promise("capture", ("redaction", "2048", "redact", "mb_per_s"), "redaction, 2 KB", "≥", 50, "MB/s"),
    Promise("capture", ("redaction", "65536", "redact", "mb_per_s"), "redaction, 64 KB", "≥", 50, "MB/s"),
    Promise("capture", ("redaction", "1048576", "redact", "mb_per_s"), "redaction, 1 MB", "≥", 50, "MB/s"),
    Promise("capture", ("redaction", "2048", "redact", "p95_us"), "redaction, 2 KB, P95", "<", 200, "µs"),
    Promise("capture", ("facts", "facts", "p50_us"), "facts of a shell line", "≤", 100, "µs"),
    Promise("streams", ("us_per_event", "ours"), "all operators on Kafka, decode included", "≤", 40, "µs/event"),
    Promise("streams", ("over_ours", "faust"), "plain Faust, as a multiple of ours", "≥", 5, "×"),
    Promise("streams", ("over_ours", "quix_streams"), "Quix Streams, as a multiple of ours", ">", 1, "×"),
    Promise("sink", ("sink_to", "client_same"), "sink, of the client alone", "≥", 0.7, "×"),
    Promise("latency", ("events_1000_per_s", "hook_to_row", "p95_ms"), "hook → row at 1,000/s, P95", "<", 1000, "ms"),
    Promise(
        "latency", ("events_1000_per_s", "hook_to_finding", "p95_ms"), "hook → finding at 1,000/s, P95", "<", 1000, "ms"
    ),
    Promise("operators", ("growth", "open_calls"), "ten times the open calls cost", "≤", 12, "×"),
    Promise("operators", ("growth", "keys"), "ten times the keys cost", "≤", 12, "×"),
    Promise("operators", ("growth", "events"), "ten times the events cost", "≤", 12, "×"),
    Promise("operators", ("open_calls", "1000000", "rss_mib"), "1,000,000 open calls, resident", "<", 1024, "MiB"),
    *(
        promise
        for transport in ("stdio", "http")
        for promise in (
            Promise(
                "proxy",
                (transport, "agenttrace", "1x1KiB", "p95_added"),
                f"MCP proxy over {transport}, one call of 1 KiB, P95 added",
                "<",
                1,
                "ms",
            ),
            Promise(
                "proxy",
                (transport, "agenttrace", "32x1KiB", "throughput_ratio"),
                f"MCP proxy over {transport}, 32 calls at a time, of direct to a raw server",
                "≥",
                0.5,
                "×",
            ),
            Promise(
                "proxy",
                (f"{transport}_sdk", "agenttrace", "32x1KiB", "throughput_ratio"),
                f"MCP proxy over {transport}, 32 calls at a time, of direct to a server on the SDK",
                "≥",
                0.5,
                "×",
            ),
            *(
                Promise(
                    "proxy",
                    (transport, "public_added_over_ours", name),
                    f"{name} over {transport}, P50 added, as a multiple of ours",
                    ">",
                    1,
                    "×",
                )
                for name in ("mcp_proxy", "fastmcp")
            ),
        )
    ),
    Promise("proxy_collector", ("dead_over_alive",), "MCP calls, collector and Kafka dead over alive", "≤", 1.2, "×"),
)


def markdown(results: dict[str, Any], titles: dict[str, str]) -> str:
    """The page for these results; `titles` says in a line what each bench measures."""
    machine = results["machine"]
    lines = [
        HEAD,
        f"{machine['at']}, {machine['system']}, {machine['cores']} cores, Python {machine['python']}, "
        f"load before {machine['load'][0]}.",
        "",
        "## Promised and measured",
        "",
        "| figure | promised | measured | kept |",
        "| --- | --- | --- | --- |",
    ]
    for promise in PROMISES:
        value = _at(results["benches"].get(promise.bench), promise.path)
        bound = f"{promise.side} {promise.bound:g} {promise.unit}"
        if value is None:
            lines.append(f"| {promise.what} | {bound} | not measured in this run | |")
        else:
            lines.append(f"| {promise.what} | {bound} | {value:g} | {'yes' if promise.kept(value) else '**no**'} |")
    for name, found in results["benches"].items():
        lines += ["", f"## {name}: {titles[name]}", "", "| figure | value |", "| --- | --- |"]
        lines += [f"| {figure} | {_said(value)} |" for figure, value in flat(found)]
    return "\n".join(lines) + "\n"


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Figures with dotted names; a list of numbers is one figure."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in flat(item, f"{name}.{key}" if name else str(key))]
    return [(name, value)]


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " … ".join(_said(item) for item in value)
    return f"{round(value, 3):g}" if isinstance(value, float) else str(value)


def _at(found: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
