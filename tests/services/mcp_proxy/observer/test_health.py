"""What makes a server up, degraded, down, and that it does not flap."""

from __future__ import annotations

from typing import Any

import pytest

from services.mcp_proxy.observer.health import BAD, REFUSED, WINDOW, Health
from tests.services.mcp_proxy.observer.driving import Http, Stdio, error, request, result

pytestmark = pytest.mark.unit


def states(drive: Any) -> list[str]:
    return [event["health"] for event in drive.named("mcp.server.health_changed")]


def test_a_server_that_answers_is_up_and_one_whose_process_ends_is_down() -> None:
    drive = Stdio()
    drive.client(request(1))
    drive.server(result(1))
    drive.client(request(2))
    drive.server(result(2))
    drive.exit(code=0)
    assert states(drive) == ["connecting", "up", "down"]
    assert drive.named("mcp.server.health_changed")[-1]["severity"] == "info"


def test_an_error_that_the_client_caused_is_an_answer() -> None:
    drive = Stdio()
    for n in range(WINDOW):
        drive.client(request(n))
        drive.server(error(n, -32601))
    assert states(drive) == ["connecting", "up"]


@pytest.mark.parametrize("code", [-32603, -32000, -32019])
def test_repeated_faults_of_the_server_degrade_it(code: int) -> None:
    drive = Stdio()
    for n in range(WINDOW):
        drive.client(request(n))
        drive.server(error(n, code) if n >= WINDOW - BAD else result(n))
    assert states(drive) == ["connecting", "up", "degraded"]
    assert drive.named("mcp.server.health_changed")[-1]["reason"] == "error: 5 of 20"
    for n in range(100, 100 + WINDOW):
        drive.client(request(n))
        drive.server(result(n))
    assert states(drive) == ["connecting", "up", "degraded", "up"]


def test_time_outs_and_noise_degrade_it_too() -> None:
    drive = Stdio(timeout_ms=10)
    drive.client(*(request(n) for n in range(BAD)))
    drive.tick(20)
    assert states(drive) == ["connecting", "degraded"]
    noisy = Stdio()
    noisy.server(*(b"log line\n" for _ in range(BAD)))
    assert states(noisy) == ["connecting", "degraded"]
    # What the client garbles is not the server's fault.
    other = Stdio()
    other.client(*(b"log line\n" for _ in range(BAD)))
    assert states(other) == ["connecting"]


def test_a_server_that_fails_every_other_time_does_not_flap() -> None:
    health = Health()
    health.connecting()
    changes = [
        change
        for n in range(1000)
        if (change := health.bad("error") if n % 2 else health.good()) is not None
    ]  # fmt: skip
    assert [state for state, _ in changes] == ["up", "degraded"]


def test_throttling_is_backoff() -> None:
    drive = Http()
    for n in range(BAD):
        drive.json(request(n), {"error": "slow down"}, status=429)
    assert states(drive) == ["connecting", "backoff"]
    for n in range(WINDOW):
        drive.json(request(n), result(n))
    assert states(drive) == ["connecting", "backoff", "up"]


def test_one_refused_connection_is_not_yet_down() -> None:
    drive = Http()
    drive.json(request(0), result(0))
    for n in range(1, REFUSED + 1):
        drive.done(drive.open(request(n)), "connect")
        assert states(drive)[-1] == ("down" if n == REFUSED else "up")
    drive.done(drive.open(request(99)), "connect")
    drive.json(request(100), result(100))
    assert states(drive) == ["connecting", "up", "down", "up"]


def test_sessions_share_the_health_of_their_server() -> None:
    drive = Http()
    for n in range(20):
        drive.json(request(n), result(n), session=f"s{n}")
    assert states(drive) == ["connecting", "up"]


def test_broken_streams_degrade_it() -> None:
    drive = Http()
    for n in range(BAD):
        drive.done(drive.stream(request(n)), "upstream")
        drive.done(drive.stream(request(n)), "client")
    assert states(drive) == ["connecting", "degraded"]
