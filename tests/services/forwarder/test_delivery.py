"""The native command and a collector that answers, refuses, stalls or talks nonsense."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest

from services.forwarder import protocol

pytestmark = pytest.mark.integration

BINARY = bytes(range(256)) * 9 + b"\x00\xff\r\n\r\n"
DENY = b'{"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no\xc3\xa9"}}'


def test_the_request_is_the_contract_to_the_letter(native, collector):
    done = native.run(BINARY, "claude_code")
    (request,) = collector.requests
    assert request.line == "POST /hooks/claude_code HTTP/1.1"
    assert request.line.split()[1] == protocol.HOOK_PATH.format(runtime="claude_code")
    assert request.headers == [
        ("Host", "agenttrace"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(BINARY))),
        (protocol.HEADER_DELIVERY, request[protocol.HEADER_DELIVERY]),
        (protocol.HEADER_PID, str(os.getpid())),
        ("Connection", "close"),
    ]
    assert protocol.is_delivery_id(request[protocol.HEADER_DELIVERY])
    assert request.body == BINARY
    assert (done.stdout, done.stderr) == (b"", b"")
    assert not (native.home / "spool").exists()


def test_an_empty_payload_is_delivered_too(native, collector):
    native.run(b"")
    assert [request.body for request in collector.requests] == [b""]


def test_ids_carry_the_time_and_never_repeat(native, collector):
    before = time.time_ns() // 1_000_000
    for _ in range(20):
        native.run()
    after = time.time_ns() // 1_000_000
    ids = [request[protocol.HEADER_DELIVERY] for request in collector.requests]
    assert len(set(ids)) == 20
    assert all(before <= int(text.replace("-", "")[:12], 16) <= after for text in ids)
    assert ids == sorted(ids, key=lambda text: text[:13])


@pytest.mark.parametrize("size", [len(DENY), 1_000_000])
def test_a_decision_is_printed_byte_for_byte(native, collector, say, size):
    decision = DENY.ljust(size, b" ")
    collector.answer = say("200 OK", decision)
    assert native.run().stdout == decision


@pytest.mark.parametrize(
    ("status", "body"),
    [("200 OK", b"{}"), ("200 OK", b""), ("200 OK", b" \r\n{ }\n"), ("202 Accepted", DENY), ("204 No Content", b"")],
)
def test_no_decision_prints_nothing(native, collector, say, status, body):
    collector.answer = say(status, body)
    assert native.run().stdout == b""
    assert native.spooled() == {}


@pytest.mark.parametrize("status", ["302 Found", "400 Bad", "401 Who", "404 Where", "413 Big", "500 Oh", "503 Later"])
def test_a_refused_delivery_is_spooled_under_the_same_id(native, collector, say, status):
    collector.answer = say(status, DENY)
    assert native.run(BINARY).stdout == b""
    ((name, spooled),) = native.spooled().items()
    assert name == collector.requests[0][protocol.HEADER_DELIVERY]
    assert spooled == protocol.SpooledDelivery(pid=os.getpid(), oversized_bytes=None, body=BINARY)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"\r\n\r\n",
        b"\n\n\n\n\r\n\r\n\r\n\r\n\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
def test_half_an_answer_or_no_http_is_no_answer(native, collector, say, raw):
    collector.answer = say(raw=raw)
    assert native.run().stdout == b""
    assert list(native.spooled()) == [collector.requests[0][protocol.HEADER_DELIVERY]]


@pytest.mark.parametrize("raw", [b"HTTP/1.1 200\r\n\r\n" + DENY, b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n" + DENY])
def test_without_a_length_the_answer_ends_with_the_connection(native, collector, say, raw):
    collector.answer = say(raw=raw)
    assert native.run().stdout == DENY
    assert native.spooled() == {}


def test_an_answer_in_single_bytes(native, collector, say):
    def trickle(connection: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\ncontent-LENGTH:%d\r\n\r\n" % len(DENY) + DENY:
            connection.sendall(bytes([byte]))

    collector.answer = trickle
    assert native.run().stdout == DENY


def test_it_leaves_once_the_answer_is_whole(native, collector, say):
    collector.answer = say("200 OK", DENY, close=False)
    started = time.monotonic()
    assert native.run(AGENTTRACE_HOOK_TIMEOUT_MS="30000").stdout == DENY
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("setting", "at_least"), [("300", 0.3), ("0", 0), ("soon", 2), ("-1", 2)])
def test_a_collector_that_never_answers_costs_no_more_than_the_limit(native, collector, setting, at_least):
    collector.answer = lambda connection: None
    started = time.monotonic()
    native.run(BINARY, AGENTTRACE_HOOK_TIMEOUT_MS=setting)
    assert at_least <= time.monotonic() - started < at_least + 3
    ((name, spooled),) = native.spooled().items()
    assert spooled.body == BINARY
    if at_least:
        assert name == collector.requests[0][protocol.HEADER_DELIVERY]


def test_a_collector_that_reads_nothing(native, collector):
    collector.read_request, collector.answer = False, lambda connection: None
    native.run(bytes(4_000_000), AGENTTRACE_HOOK_TIMEOUT_MS="300")
    assert [spooled.body for spooled in native.spooled().values()] == [bytes(4_000_000)]


def test_a_refusal_before_the_body_was_read(native, collector, say):
    collector.read_request, collector.answer = False, say("503 Later")
    native.run(bytes(8_000_000))
    assert [spooled.body for spooled in native.spooled().values()] == [bytes(8_000_000)]


def test_a_full_backlog(native, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        waiting = []
        while len(waiting) < 20:
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            if client.connect_ex(str(tmp_path / "s")) != 0:
                break
        started = time.monotonic()
        native.run(AGENTTRACE_SOCKET=str(tmp_path / "s"), AGENTTRACE_HOOK_TIMEOUT_MS="300")
        assert time.monotonic() - started < 3
        for client in waiting:
            client.close()
    assert len(native.spooled()) == 1


def test_a_socket_nobody_listens_on(native, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
    native.run(AGENTTRACE_SOCKET=str(tmp_path / "s"))
    native.run(AGENTTRACE_SOCKET="/" + "x" * 5000)
    native.run(AGENTTRACE_SOCKET="/" + "x" * 150)
    assert len(native.spooled()) == 3


def test_the_largest_payload_passes_whole(native, collector):
    payload = os.urandom(1 << 20) * 32
    native.run(payload, AGENTTRACE_HOOK_TIMEOUT_MS="20000")
    assert [request.body for request in collector.requests] == [payload]


@pytest.mark.parametrize("more", [1, 70_001, 40_000_000])
def test_a_larger_one_sends_a_marker(native, collector, more):
    payload = os.urandom(1 << 20) * 32 + bytes(more)
    native.run(payload)
    (request,) = collector.requests
    assert request[protocol.HEADER_OVERSIZED] == str(len(payload))
    assert json.loads(request.body) == {
        protocol.OVERSIZED_KEY: {"size_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    }


def test_little_memory_makes_a_marker_early(native, collector):
    payload = os.urandom(1 << 20) * 12
    limit = (16 << 20, 16 << 20)
    process = native.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
    process.communicate(payload, timeout=30)
    assert process.returncode == 0
    assert json.loads(collector.requests[0].body)[protocol.OVERSIZED_KEY] == {
        "size_bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }


def test_a_socket_path_longer_than_the_kernel_takes(native, collector, say):
    path = native.home / ("a" * 90) / ("b" * 90) / ("c" * 90) / "collector.sock"
    path.parent.mkdir(parents=True)
    with type(collector)(path, say("200 OK", DENY)) as far_away:
        assert native.run(AGENTTRACE_SOCKET=str(path)).stdout == DENY
    assert (len(far_away.requests), len(collector.requests)) == (1, 0)
    native.run(AGENTTRACE_SOCKET=str(path))
    assert len(native.spooled()) == 1


def test_a_relative_socket_path_is_not_used(native, collector):
    native.run(AGENTTRACE_SOCKET="elsewhere.sock")
    assert len(collector.requests) == 1


def test_two_hundred_at_once(native, collector):
    processes = [native.start(stdin=subprocess.DEVNULL) for _ in range(200)]
    assert [process.wait(60) for process in processes] == [0] * 200
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert len({request[protocol.HEADER_DELIVERY] for request in collector.requests}) == 200
    assert native.spooled() == {}


@pytest.mark.parametrize("closed", [(1,), (0,), (2,), (0, 1, 2)])
def test_closed_descriptors(native, collector, say, closed, tmp_path):
    collector.answer = say("200 OK", DENY)

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    process = native.start(preexec_fn=close, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    try:
        process.stdin.write(b"{}")
        process.stdin.close()
    except BrokenPipeError:
        pass
    assert process.wait(10) == 0
    assert [request.body for request in collector.requests] == [b"" if 0 in closed else b"{}"]
    assert native.spooled() == {}


def test_a_reader_that_has_gone(native, collector, say):
    collector.answer = say("200 OK", DENY * 10_000)
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = native.start(stdout=write_end, stdin=subprocess.DEVNULL)
    os.close(write_end)
    assert process.wait(10) == 0


def test_a_reader_that_does_not_read(native, collector, say):
    collector.answer = say("200 OK", DENY * 10_000)
    process = native.start(stdin=subprocess.DEVNULL, env=native.env(AGENTTRACE_HOOK_TIMEOUT_MS="400"))
    assert process.wait(10) == 0
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_waiting_for_the_answer_spools(native, collector, until, number):
    collector.answer = lambda connection: None
    process = native.start(env=native.env(AGENTTRACE_HOOK_TIMEOUT_MS="60000"))
    assert process.stdin is not None
    process.stdin.write(BINARY)
    process.stdin.close()
    until(lambda: len(collector.requests) == 1)
    process.send_signal(number)
    assert process.wait(10) == 0
    ((name, spooled),) = native.spooled().items()
    assert (name, spooled.body) == (collector.requests[0][protocol.HEADER_DELIVERY], BINARY)
    assert process.stdout is not None
    process.stdout.close()


def _unread(pipe: int) -> int:
    """Bytes written to a pipe that its reader has not taken yet."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(waiting)


def test_a_signal_while_reading_spools_what_came(native, until):
    process = native.start()
    assert process.stdin is not None
    process.stdin.write(b'{"half": ')
    process.stdin.flush()
    pipe = process.stdin.fileno()
    until(lambda: _unread(pipe) == 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert [spooled.body for spooled in native.spooled().values()] == [b'{"half": ']
    process.stdin.close()
    assert process.stdout is not None
    process.stdout.close()


def test_a_runtime_that_forgets_to_close_the_pipe(native, collector):
    process = native.start()
    assert process.stdin is not None
    process.stdin.write(b'{"a": 1}')
    process.stdin.flush()
    assert process.wait(15) == 0
    assert [request.body for request in collector.requests] == [b'{"a": 1}']
    process.stdin.close()
    assert process.stdout is not None
    process.stdout.close()
