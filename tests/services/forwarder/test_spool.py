"""Every form of the command when no collector answers: what lands in the spool, and what never does."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import subprocess
import time
from pathlib import Path

import pytest

from services.forwarder import protocol

pytestmark = pytest.mark.integration

BINARY = bytes(range(256)) * 9 + b"\x00\xff\r\n\r\n"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "payload", [b"", b'{"a": 1}\n', b'{"a": 1}', BINARY, bytes(70_000), b"agenttrace-spool/1 pid=1\n"]
)
def test_the_payload_lands_as_it_came(hook, payload):
    before = int(time.time())
    done = hook.run(payload)
    assert (done.stdout, done.stderr) == (b"", b"")
    ((name, spooled),) = hook.spooled().items()
    assert spooled == protocol.SpooledDelivery(pid=os.getpid(), oversized_bytes=None, body=payload)
    assert before * 1000 <= int(name.replace("-", "")[:12], 16) <= time.time() * 1000
    assert (hook.folder / name).read_bytes() == f"{protocol.SPOOL_MAGIC} pid={os.getpid()}\n".encode() + payload


def test_others_can_read_nothing(hook):
    process = hook.start(preexec_fn=lambda: os.umask(0), stdin=subprocess.DEVNULL)
    assert process.wait(10) == 0
    process.stdout.close()
    (name,) = hook.spooled()
    assert [_mode(hook.home), _mode(hook.folder.parent), _mode(hook.folder)] == [0o700] * 3
    assert _mode(hook.folder / name) == 0o600


def test_an_open_folder_is_closed(native):
    native.folder.mkdir(parents=True, mode=0o755)
    native.run()
    assert [_mode(native.folder.parent), _mode(native.folder)] == [0o700] * 2


def test_without_settings_it_is_below_the_home_folder(hook):
    hook.home.parent.mkdir(exist_ok=True)
    for home in ("", "relative/place"):
        hook.run(env={"PATH": hook.path, "HOME": str(hook.home.parent), "AGENTTRACE_HOME": home})
    assert len(list((hook.home.parent / ".agenttrace/spool/codex").glob("[0-9]*"))) == 2


def test_the_largest_payload(hook):
    payload = os.urandom(1 << 20) * 32
    hook.run(payload)
    assert [spooled.body for spooled in hook.spooled().values()] == [payload]
    assert (hook.folder / protocol.SPOOL_BLOCKS_COUNTER).stat().st_size == protocol.MAX_BODY_BYTES // 4096 + 1


@pytest.mark.parametrize("more", [1, 32_769, 5_000_000])
def test_a_larger_one_leaves_a_marker(hook, more):
    payload = os.urandom(1 << 20) * 32 + bytes(more)
    hook.run(payload)
    (spooled,) = hook.spooled().values()
    assert spooled.oversized_bytes == len(payload)
    assert json.loads(spooled.body) == {
        protocol.OVERSIZED_KEY: {"size_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    }
    assert (hook.folder / protocol.SPOOL_BLOCKS_COUNTER).stat().st_size == 1


@pytest.mark.parametrize("runtime", ["", "Codex", "../codex", "a/b", ".", "x" * 33, "caf\u00e9", "a b", "-", "a\n"])
def test_a_bad_runtime_is_read_and_forgotten(hook, runtime):
    done = hook.run(bytes(1_000_000), runtime)
    assert (done.stdout, done.stderr) == (b"", b"")
    if runtime != "-":
        assert not hook.home.exists()


def test_no_argument_and_too_many(hook):
    done = subprocess.run(hook.argv, input=bytes(1_000_000), capture_output=True, env=hook.env(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    hook.run(b"{}", "codex", "--colour", "x")
    assert len(hook.spooled()) == 1


@pytest.mark.parametrize("question", ["--help", "--version"])
def test_a_person_is_answered_on_stderr(hook, question):
    done = hook.run(b"", question)
    assert done.stdout == b""
    assert protocol.COMMAND.encode() in done.stderr
    if question == "--version":
        assert f"wire format {protocol.WIRE_VERSION}".encode() in done.stderr
    assert not hook.home.exists()


def test_a_terminal_gets_the_usage_and_nothing_waits(hook):
    ours, theirs = os.openpty()
    done = subprocess.run(
        [*hook.argv, "codex"], stdin=theirs, capture_output=True, env=hook.env(), timeout=10, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"usage" in done.stderr


@pytest.mark.parametrize("which", ["spool", "codex"])
def test_a_symlink_is_refused(hook, which, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "codex").mkdir(parents=True)
    hook.home.mkdir()
    if which == "codex":
        hook.folder.parent.mkdir()
        hook.folder.symlink_to(elsewhere / "codex")
    else:
        hook.folder.parent.symlink_to(elsewhere)
    assert hook.run().stdout == b""
    assert list((elsewhere / "codex").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("which", ["spool", "codex"])
def test_a_folder_of_someone_else_is_refused(hook, which):
    hook.folder.mkdir(parents=True, mode=0o700)
    os.chown(hook.folder if which == "codex" else hook.folder.parent, 12345, 12345)
    hook.run()
    assert list(hook.folder.iterdir()) == []


@pytest.mark.parametrize("obstacle", ["home", "spool", "codex"])
def test_a_file_where_a_folder_should_be(hook, obstacle):
    place = {"home": hook.home, "spool": hook.folder.parent, "codex": hook.folder}[obstacle]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"kept")
    done = hook.run(bytes(1_000_000))
    assert (done.stdout, done.stderr) == (b"", b"")
    assert place.read_bytes() == b"kept"


def test_the_bound_on_files(hook):
    for size in range(5):
        hook.run(bytes(size), AGENTTRACE_SPOOL_MAX_FILES="3")
    assert sorted(len(spooled.body) for spooled in hook.spooled().values()) == [0, 1, 2]
    drops = hook.dropped()
    assert [size for _, size in drops.named] == [3, 4]
    assert all(protocol.is_delivery_id(name) for name, _ in drops.named)
    assert (drops.unnamed, drops.at_least) == (0, False)


def test_the_bound_on_bytes(hook):
    for _ in range(6):
        hook.run(bytes(3000), AGENTTRACE_SPOOL_MAX_BYTES="16385")
    assert len(hook.spooled()) == 4
    assert len(hook.dropped().named) == 2


def test_one_that_can_never_fit_does_not_stop_smaller_ones(hook):
    hook.run(bytes(20_000), AGENTTRACE_SPOOL_MAX_BYTES="8192")
    assert hook.dropped().named[0][1] == 20_000
    hook.run(b"{}", AGENTTRACE_SPOOL_MAX_BYTES="8192")
    assert len(hook.spooled()) == 1


def test_no_spool_at_all(hook):
    hook.run(AGENTTRACE_SPOOL_MAX_FILES="0")
    assert hook.spooled() == {}
    assert len(hook.dropped().named) == 1


@pytest.mark.parametrize("nonsense", ["", "many", "-3", "1e3", "9" * 40])
def test_nonsense_limits_mean_the_default(hook, nonsense):
    hook.run(AGENTTRACE_SPOOL_MAX_FILES=nonsense, AGENTTRACE_SPOOL_MAX_BYTES=nonsense)
    assert len(hook.spooled()) == 1


def test_counters_that_say_full_are_checked_against_the_folder(hook):
    hook.run()
    for counter in (protocol.SPOOL_FILES_COUNTER, protocol.SPOOL_BLOCKS_COUNTER):
        (hook.folder / counter).write_bytes(bytes(protocol.SPOOL_MAX_BYTES // 4096))
    hook.run()
    assert len(hook.spooled()) == 2
    for counter in (protocol.SPOOL_FILES_COUNTER, protocol.SPOOL_BLOCKS_COUNTER):
        assert (hook.folder / counter).stat().st_size == 2


def test_a_drained_spool_takes_files_again(hook, until):
    for _ in range(3):
        hook.run(AGENTTRACE_SPOOL_MAX_FILES="2")
    assert (hook.folder / protocol.SPOOL_FULL_MARK).exists()
    for name in hook.spooled():
        (hook.folder / name).unlink()

    def taken() -> bool:
        hook.run(AGENTTRACE_SPOOL_MAX_FILES="2")
        return bool(hook.spooled())

    until(taken)


def test_a_full_mark_from_the_future_is_not_believed(hook):
    hook.run()
    for counter in (protocol.SPOOL_FILES_COUNTER, protocol.SPOOL_BLOCKS_COUNTER):
        (hook.folder / counter).write_bytes(bytes(protocol.SPOOL_MAX_FILES))
    (hook.folder / protocol.SPOOL_FULL_MARK).write_text("9999999999999\n")
    hook.run()
    assert len(hook.spooled()) == 2


def test_the_list_of_drops_is_bounded_too(hook):
    hook.folder.mkdir(parents=True, mode=0o700)
    dropped = hook.folder / protocol.SPOOL_DROPPED
    for size, grows in [
        (protocol.DROPPED_NAMED_BYTES - 1, 48),
        (protocol.DROPPED_NAMED_BYTES, 1),
        (protocol.DROPPED_MAX_BYTES, 0),
    ]:
        with dropped.open("wb") as file:
            file.truncate(size)
        hook.run(AGENTTRACE_SPOOL_MAX_FILES="0")
        assert dropped.stat().st_size == size + grows


def test_a_disk_that_takes_no_more(hook):
    process = hook.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    payload = bytes(3_000_000)
    assert process.stdin is not None
    process.stdin.write(payload)
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
    assert hook.spooled() == {}
    ((_, size),) = hook.dropped().named
    assert size == len(payload) if hook.native else size > 0


def test_two_hundred_at_once(hook):
    processes = [hook.start(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(200)]
    assert [process.wait(100) for process in processes] == [0] * 200
    assert len(hook.spooled()) == 200
    assert (hook.folder / protocol.SPOOL_FILES_COUNTER).stat().st_size == 200


def test_two_hundred_at_once_for_fifty_places(hook):
    env = hook.env(AGENTTRACE_SPOOL_MAX_FILES="50")
    processes = [hook.start(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env) for _ in range(200)]
    assert [process.wait(100) for process in processes] == [0] * 200
    kept, drops = hook.spooled(), hook.dropped()
    assert len(kept) + len(drops.named) == 200
    assert not kept.keys() & {name for name, _ in drops.named}
    assert len(kept) >= 40
    if hook.native:
        assert len(kept) <= 50


def test_nothing_of_the_environment_is_kept(hook):
    hook.run(SECRET_API_KEY="sk-planted-4711")
    assert not [path for path in hook.home.rglob("*") if path.is_file() and b"sk-planted" in path.read_bytes()]


@pytest.mark.parametrize("missing", [("dd",), ("stat",), ("stat", "date"), ("sha256sum", "shasum"), ("mkfifo",)])
def test_the_script_makes_do_with_fewer_tools(hook, missing, tmp_path):
    if hook.form in ("c", "busybox"):
        pytest.skip("has its tools built in")
    poor = tmp_path / "poor"
    poor.mkdir()
    for tool in missing:
        # A date without milliseconds, as of busybox; the others fail as if they did not know the option.
        seconds = "case $1 in *N) echo 1796069352%3N ;; *) echo 1796069352 ;; esac"
        (poor / tool).write_text(f"#!/bin/sh\n{seconds if tool == 'date' else 'exit 1'}\n")
        (poor / tool).chmod(0o755)
    hook.path = f"{poor}:{hook.path}"
    payload = os.urandom(1 << 20) * 32 + bytes(200_000)
    hook.run(BINARY)
    hook.run(payload)
    plain, marker = sorted(hook.spooled().items(), key=lambda item: item[1].oversized_bytes or 0)
    assert plain[1].body == BINARY
    if "date" in missing:
        assert int(plain[0].replace("-", "")[:12], 16) == 1796069352000
    told = json.loads(marker[1].body)[protocol.OVERSIZED_KEY]
    if {"dd", "sha256sum", "mkfifo"} & set(missing):
        assert told["sha256"] is None
        assert protocol.MAX_BODY_BYTES < told["size_bytes"] <= len(payload)
    else:
        assert told == {"size_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
