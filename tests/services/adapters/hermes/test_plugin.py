"""The Hermes plugin in a process of its own, driven as Hermes drives it, against a collector or against none."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import services.adapters.hermes
from services.adapters.hermes import plugin
from services.forwarder import protocol
from tests.services.adapters.plugin_collector import Collector, collector, home, spooled
from tests.services.adapters.plugin_recordings import entries
from tests.services.adapters.recorded_hooks import Json, Player, outcomes
from tests.services.collector.running import journalled, running, settings, until

__all__ = ["home"]

pytestmark = pytest.mark.integration

PLUGIN = Path(services.adapters.hermes.__file__).parent / "plugin"
DRIVER = Path(__file__).with_name("drive_plugin.py")


def drive(home: Path, payloads: list[Any], *, there: Collector | None = None, ending: str = "end", **env: str) -> Json:
    """What the callbacks gave back: calls, how many returned something, the slowest in ms.

    With `there` the process lives until that collector has got all of it.
    """
    lines = "".join(json.dumps(each) + "\n" for each in payloads)
    with subprocess.Popen(
        # -I: no path of this project, since the agent's interpreter has none of it either.
        [sys.executable, "-I", str(DRIVER), str(PLUGIN), ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "AGENTTRACE_HOME": str(home), **env},
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(lines)
        process.stdin.flush()
        if there is not None:
            there.wait_for(sum(each["hook"] in plugin.HOOKS for each in payloads))
        out, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == ("", 0)
    found: Json = json.loads(out)
    return found


def session(name: str = "session") -> list[Json]:
    return [entry.payload for entry in entries("hermes", name)]


def sent(payloads: list[Json]) -> list[str]:
    return [each["hook"] for each in payloads if each["hook"] in plugin.HOOKS]


def test_each_hook_call_is_delivered_once_and_in_order(home: Path) -> None:
    with collector(home / "collector.sock") as there:
        told = drive(home, session(), there=there)
    assert told["returned"] == 0 and told["slowest"] < 250
    assert [each.payload["hook"] for each in there.taken] == sent(session())
    assert {each.path for each in there.taken} == {"/hooks/hermes"}
    ids = [each.delivery_id for each in there.taken]
    assert ids == sorted(set(ids)) and all(protocol.is_delivery_id(each) for each in ids)
    assert spooled(home, "hermes") == []


@pytest.mark.parametrize("name", ["session", "session-execute-code", "session-parallel"])
def test_what_arrives_tells_the_same_calls_as_the_hooks_themselves(home: Path, name: str) -> None:
    with collector(home / "collector.sock") as there:
        drive(home, session(name), there=there)

    def calls(payloads: list[Json]) -> list[Json]:
        one = Player("hermes")
        events = [event for each in payloads for event in one.play(each)]
        told = [event for event in events if event["event_name"].startswith("tool.call.")]
        return [{key: value for key, value in event.items() if key not in _DIFFER} for event in told]

    assert calls([each.payload for each in there.taken]) == calls(session(name))


_DIFFER = {"event_id", "timestamp", "observed_at", "mcp"}


def test_the_running_agent_knows_the_servers(home: Path) -> None:
    with collector(home / "collector.sock") as there:
        drive(home, session(), there=there)
    one = Player("hermes")
    events = [event for each in there.taken for event in one.play(each.payload)]
    servers = {event["mcp"]["server_name"] for event in events if "mcp" in event}
    assert servers == {"files.v2", "everything"}
    assert not any(event["mcp"].get("name_guess") for event in events if "mcp" in event)


@pytest.mark.parametrize("ending", ["end", "exit"])
def test_without_a_collector_everything_waits_in_the_spool_in_order(home: Path, ending: str) -> None:
    drive(home, session(), ending=ending)
    kept = spooled(home, "hermes")
    assert [body["hook"] for _, body in kept] == sent(session())
    assert (home / "spool" / "hermes").stat().st_mode & 0o777 == 0o700
    assert not list((home / "spool" / "hermes").glob(".tmp.*"))


def test_a_collector_that_never_answers_costs_the_agent_nothing(home: Path) -> None:
    with collector(home / "collector.sock", waiting=True) as there:
        told = drive(home, session())
    assert told["returned"] == 0 and told["slowest"] < 250
    # What was under way is spooled under the id with which it was sent, so it cannot count twice.
    kept = dict(spooled(home, "hermes"))
    assert len(kept) == told["calls"] and {each.delivery_id for each in there.taken} <= set(kept)


def test_a_collector_that_refuses_loses_nothing(home: Path) -> None:
    with collector(home / "collector.sock", status=503) as there:
        told = drive(home, session())
    kept = dict(spooled(home, "hermes"))
    assert len(kept) == told["calls"] and {each.delivery_id for each in there.taken} <= set(kept)


def names(home: Path) -> list[str]:
    return [event["event_name"] for event in journalled(home)]


async def test_the_collector_takes_what_was_spooled_and_then_what_is_sent(home: Path) -> None:
    half = len(session()) // 2
    drive(home, session()[:half])
    assert spooled(home, "hermes")
    async with running(settings(home)):
        await until(lambda: spooled(home, "hermes") == [])
        await asyncio.to_thread(drive, home, session()[half:])
        # What was not acknowledged when that process ended is in the spool, under the id it was sent with.
        await until(lambda: spooled(home, "hermes") == [] and names(home).count("turn.ended") == 2)
    events = journalled(home)
    assert len({event["event_id"] for event in events}) == len(events)
    player = Player("hermes")
    direct = [event for each in session() for event in player.play(each)]
    assert outcomes(events) == outcomes(direct) and len(outcomes(events)) == 16
    assert "agent.payload.quarantined" not in names(home)


def test_a_full_spool_counts_what_it_drops(home: Path) -> None:
    told = drive(home, session(), AGENTTRACE_SPOOL_MAX_FILES="5")
    assert len(spooled(home, "hermes")) == 5
    drops = protocol.parse_dropped((home / "spool" / "hermes" / protocol.SPOOL_DROPPED).read_bytes())
    assert len(drops.named) == told["calls"] - 5 and all(size > 0 for _, size in drops.named)


def test_values_that_are_no_json_are_told_by_their_type(home: Path) -> None:
    told = drive(home, [{"hook": "pre_verify", "kwargs": {"odd": True, "session_id": "s"}}])
    ((_, body),) = spooled(home, "hermes")
    assert told["returned"] == 0 and "planted" not in json.dumps(body)
    assert body["kwargs"]["session_id"] == "s" and body["kwargs"]["object"] == {"__type__": "Odd"}
    assert body["kwargs"]["circular"] == {"__type__": "list"} and body["kwargs"]["keys"] == {"__type__": "dict"}


def test_an_oversized_payload_is_told_by_size_and_digest(home: Path) -> None:
    drive(
        home, [{"hook": "pre_tool_call", "kwargs": {"tool_name": "write_file", "args": {"content": "x" * (33 << 20)}}}]
    )
    ((name, body),) = spooled(home, "hermes")
    assert body[protocol.OVERSIZED_KEY]["size_bytes"] > 33 << 20 and len(body[protocol.OVERSIZED_KEY]["sha256"]) == 64
    kept = protocol.parse_spool_file((home / "spool" / "hermes" / name).read_bytes())
    assert kept.oversized_bytes == body[protocol.OVERSIZED_KEY]["size_bytes"]


class _Registered:
    def __init__(self) -> None:
        self.hooks: dict[str, Callable[..., None]] = {}

    def register_hook(self, name: str, callback: Callable[..., None]) -> None:
        self.hooks[name] = callback


@pytest.mark.parametrize("failure", [SystemExit, GeneratorExit, RuntimeError, MemoryError])
def test_no_failure_reaches_the_agent(failure: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(plugin.Sender, "send", fail)
    registered = _Registered()
    plugin.register(registered)
    assert set(registered.hooks) == set(plugin.HOOKS)
    for callback in registered.hooks.values():
        assert callback(session_id="s") is None


def test_the_user_s_interrupt_is_the_agent_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plugin.Sender, "send", interrupted)
    registered = _Registered()
    plugin.register(registered)
    with pytest.raises(KeyboardInterrupt):
        registered.hooks["pre_tool_call"](session_id="s")


def test_the_agent_s_own_objects_are_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []
    monkeypatch.setattr(plugin.Sender, "send", lambda self, body, now: bodies.append(body))
    registered = _Registered()
    plugin.register(registered)
    args = {"command": "true"}
    registered.hooks["pre_tool_call"](tool_name="terminal", args=args)
    args["command"] = "changed later"
    assert orjson.loads(bodies[0])["kwargs"]["args"] == {"command": "true"}
