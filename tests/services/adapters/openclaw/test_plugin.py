"""The OpenClaw plugin in Node, driven as OpenClaw drives it, against a collector's socket or against none."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest

import services.adapters.openclaw
from services.forwarder import protocol
from tests.services.adapters.plugin_collector import Collector, collector, home, spooled
from tests.services.adapters.plugin_recordings import entries, payload
from tests.services.adapters.recorded_hooks import Json, Player, outcomes
from tests.services.collector.running import journalled, running, settings, until

NODE = shutil.which("node")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(NODE is None, reason="no node on this machine: the plugin cannot run"),
]
__all__ = ["home"]

PLUGIN = Path(services.adapters.openclaw.__file__).parent / "plugin"
DRIVER = Path(__file__).with_name("drive_plugin.mjs")
CONFIG = {"mcp": {"servers": {"files.v2": {"command": "x"}, "everything": {}}}}

HOOKS = set(
    subprocess.run(
        [
            str(NODE),
            "--input-type=module",
            "-e",
            f"import {{HOOKS}} from '{PLUGIN}/index.js'; console.log(HOOKS.join(' '))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if NODE
    else ()
)


def drive(home: Path, payloads: list[Any], *, there: Collector | None = None, ending: str = "end", **env: str) -> Json:
    """What the handlers gave back: calls, how many returned something, the slowest in ms.

    With `there` the process lives until that collector has got all of it.
    """
    lines = "".join(json.dumps(each) + "\n" for each in payloads)
    with subprocess.Popen(
        [str(NODE), str(DRIVER), str(PLUGIN / "index.js"), ending, json.dumps(CONFIG)],
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
            there.wait_for(sum(each["hook"] in HOOKS for each in payloads))
        out, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == ("", 0)
    found: Json = json.loads(out)
    return found


def session() -> list[Json]:
    return [entry.payload for entry in entries("openclaw", "session")]


def events_of(bodies: list[bytes]) -> list[Json]:
    one = Player("openclaw")
    return [event for body in bodies for event in one.play(orjson.loads(body))]


def test_each_hook_call_is_delivered_once_and_in_order(home: Path) -> None:
    with collector(home / "collector.sock") as there:
        told = drive(home, session(), there=there)
    assert told["returned"] == 0 and told["priority"] > 1000
    assert len(there.taken) == told["calls"] > 60
    assert {each.path for each in there.taken} == {"/hooks/openclaw"}
    ids = [each.delivery_id for each in there.taken]
    assert ids == sorted(set(ids)) and all(protocol.is_delivery_id(each) for each in ids)
    sent = [each["hook"] for each in session()]
    assert [each.payload["hook"] for each in there.taken] == [hook for hook in sent if hook in HOOKS]
    # The last answer may still be under way when the process ends: then the same delivery waits in the spool too.
    assert {name for name, _ in spooled(home, "openclaw")} <= {ids[-1]}


def test_what_arrives_tells_the_same_calls_as_the_hooks_themselves(home: Path) -> None:
    with collector(home / "collector.sock") as there:
        drive(home, session(), there=there)
    made = events_of([each.body for each in there.taken])
    direct = events_of([orjson.dumps(each) for each in session()])

    def calls(events: list[Json]) -> list[Json]:
        told = [event for event in events if event["event_name"].startswith("tool.call.")]
        return [{key: value for key, value in event.items() if key not in _DIFFER} for event in told]

    assert calls(made) == calls(direct)
    # The plugin knows the servers from the configuration: nothing is guessed.
    assert not any(event.get("mcp", {}).get("name_guess") for event in made)


_DIFFER = {"event_id", "timestamp", "observed_at", "mcp", "native"}


def test_without_a_collector_everything_waits_in_the_spool_in_order(home: Path) -> None:
    told = drive(home, session())
    kept = spooled(home, "openclaw")
    assert told["returned"] == 0 and len(kept) == told["calls"]
    sent = [each["hook"] for each in session()]
    assert [body["hook"] for _, body in kept] == [hook for hook in sent if hook in HOOKS]
    assert (home / "spool" / "openclaw").stat().st_mode & 0o777 == 0o700
    assert not list((home / "spool" / "openclaw").glob(".tmp.*"))


@pytest.mark.parametrize("ending", ["end", "kill"])
def test_a_collector_that_never_answers_costs_the_agent_nothing(home: Path, ending: str) -> None:
    with collector(home / "collector.sock", waiting=True) as there:
        told = drive(home, session(), ending=ending)
    assert told["returned"] == 0 and told["slowest"] < 250
    # What was under way is spooled under the id with which it was sent, so it cannot count twice.
    kept = dict(spooled(home, "openclaw"))
    assert len(kept) == told["calls"] and {each.delivery_id for each in there.taken} <= set(kept)


def test_a_collector_that_refuses_loses_nothing(home: Path) -> None:
    with collector(home / "collector.sock", status=503) as there:
        told = drive(home, session())
    kept = dict(spooled(home, "openclaw"))
    assert len(kept) == told["calls"] and {each.delivery_id for each in there.taken} <= set(kept)


def names(home: Path) -> list[str]:
    return [event["event_name"] for event in journalled(home)]


async def test_the_collector_takes_what_was_spooled_and_then_what_is_sent(home: Path) -> None:
    half = len(session()) // 2
    drive(home, session()[:half])
    assert spooled(home, "openclaw")
    async with running(settings(home)):
        await until(lambda: spooled(home, "openclaw") == [])
        await asyncio.to_thread(drive, home, session()[half:])
        # What was not acknowledged when that process ended is in the spool, under the id it was sent with.
        await until(lambda: spooled(home, "openclaw") == [] and "session.ended" in names(home))
    events = journalled(home)
    assert len({event["event_id"] for event in events}) == len(events)
    player = Player("openclaw")
    direct = [event for each in session() for event in player.play(each)]
    assert outcomes(events) == outcomes(direct) and len(outcomes(events)) == 15
    assert "agent.payload.quarantined" not in names(home)


def test_a_full_spool_counts_what_it_drops(home: Path) -> None:
    told = drive(home, session(), AGENTTRACE_SPOOL_MAX_FILES="5")
    assert len(spooled(home, "openclaw")) == 5
    drops = protocol.parse_dropped((home / "spool" / "openclaw" / protocol.SPOOL_DROPPED).read_bytes())
    assert len(drops.named) == told["calls"] - 5 and all(size > 0 for _, size in drops.named)


def test_the_configuration_with_its_keys_stays_where_it_is(home: Path) -> None:
    given = payload("openclaw", "gateway_start-main")
    given["ctx"]["config"]["models"]["providers"]["fake"]["apiKey"] = "planted words"
    given["ctx"]["sessionKey"] = {"hidden": "planted words"}
    drive(home, [given])
    ((_, body),) = spooled(home, "openclaw")
    assert "planted" not in json.dumps(body) and body["event"] == given["event"]


def test_odd_events_never_throw(home: Path) -> None:
    odd = [{"hook": "before_tool_call", "event": kind, "ctx": None} for kind in ("circular", "throwing", "nothing")]
    told = drive(home, [*odd, *({**each, "hook": "agent_end"} for each in odd)])
    assert (told["calls"], told["returned"]) == (6, 0)
    assert [body["hook"] for _, body in spooled(home, "openclaw")].count("before_tool_call") == 2


def test_an_oversized_payload_is_told_by_size_and_digest(home: Path) -> None:
    big = {"hook": "before_tool_call", "event": {"toolName": "write", "params": {"content": "x" * (33 << 20)}}}
    drive(home, [big])
    ((name, body),) = spooled(home, "openclaw")
    assert body[protocol.OVERSIZED_KEY]["size_bytes"] > 33 << 20 and len(body[protocol.OVERSIZED_KEY]["sha256"]) == 64
    kept = protocol.parse_spool_file((home / "spool" / "openclaw" / name).read_bytes())
    assert kept.oversized_bytes == body[protocol.OVERSIZED_KEY]["size_bytes"]
