"""A stack starts in order, outlives the death of a part, ends in reverse order, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import UserError
from services.embedded import run_file, supervisor
from services.embedded.part import NotReadyError
from services.embedded.pidfile import start_mark
from services.embedded.run_file import Endpoints
from services.embedded.supervisor import Part, Supervisor

pytestmark = pytest.mark.integration

Diary = Callable[[], list[str]]
RunScript = Callable[[str], "subprocess.Popen[str]"]
Speaker = Callable[..., list[str]]
WaitUntil = Callable[..., None]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def in_background(steps: Callable[[], None]) -> threading.Thread:
    """Run `steps` beside a supervisor that holds the main thread, then ask it to end, whatever came of them."""

    def act() -> None:
        try:
            steps()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_parts_start_in_order_and_end_in_reverse_order(state_dir: Path, speaker: Speaker, diary: Diary) -> None:
    names = ["first", "second", "third"]
    with Supervisor(state_dir) as stack:
        for name in names:
            stack.start(Part(name, speaker(name), ready=lambda name=name: f"{name} started" in diary()))
        pids = {name: state.pid for name, state in stack.states().items()}
        assert list(pids) == names
        assert None not in pids.values()
    assert diary() == [f"{name} started" for name in names] + [f"{name} asked to end" for name in reversed(names)]
    assert not list(state_dir.glob("*.pid"))


def test_what_looks_at_events_steps_back_from_the_processor(state_dir: Path, speaker: Speaker, diary: Diary) -> None:
    with Supervisor(state_dir) as stack:
        for name, nice in (("collector", 0), ("worker", 7)):
            ready = lambda name=name: f"{name} started" in diary()  # noqa: E731
            stack.start(Part(name, speaker(name), ready=ready, nice=nice))
        pids = {name: state.pid or 0 for name, state in stack.states().items()}
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pids["collector"]) == own
        assert os.getpriority(os.PRIO_PROCESS, pids["worker"]) == 7


def test_a_part_that_was_killed_is_started_again_and_counted(
    state_dir: Path, speaker: Speaker, diary: Diary, wait_until: WaitUntil
) -> None:
    pids: list[int | None] = []

    def kill_one_and_wait() -> None:
        run = run_file.require(state_dir)
        pid = run.parts["part"].pid
        assert pid is not None
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run_file.require(state_dir).parts["part"].restarts == 1, "the restart is counted")
        wait_until(lambda: diary().count("part started") == 2, "the part has started again")
        pids.append(run_file.require(state_dir).parts["part"].pid)

    with Supervisor(state_dir) as stack:
        stack.start(Part("part", speaker("part"), ready=lambda: bool(diary())))
        stack.publish(Endpoints(kafka_bootstrap="127.0.0.1:9", http_port=7777))
        thread = in_background(kill_one_and_wait)
        stack.run()
        thread.join()
    before, after = pids
    assert after is not None
    assert after != before
    assert diary() == ["part started", "part started", "part asked to end"]
    assert run_file.read(state_dir) is None


def test_a_run_file_that_could_not_be_written_is_made_up_for(
    state_dir: Path, speaker: Speaker, diary: Diary, wait_until: WaitUntil
) -> None:
    with Supervisor(state_dir) as stack:
        stack.start(Part("one", speaker("one"), ready=lambda: "one started" in diary()))
        stack.publish(Endpoints())
        (state_dir / ".run.json.draft").mkdir()

        def restarts() -> int:
            run = run_file.read(state_dir)
            assert run is not None
            return run.parts["one"].restarts

        def steps() -> None:
            pid = stack.states()["one"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: stack.states()["one"].restarts == 1, "it was started again", timeout_s=20)
            assert restarts() == 0
            (state_dir / ".run.json.draft").rmdir()
            wait_until(lambda: restarts() == 1, "the run file says so", timeout_s=20)

        thread = in_background(steps)
        stack.run()
        thread.join()
        assert restarts() == 1


def test_a_part_that_keeps_dying_is_tried_ever_more_rarely(
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(supervisor, "_BACKOFF_MAX_S", 0.04)
    monkeypatch.setattr(supervisor, "_WATCH_S", 0.01)
    once = tmp_path / "once"
    dies = [sys.executable, "-c", f"import os; os.mkdir({str(once)!r}); import signal; signal.pause()"]
    with Supervisor(state_dir) as stack:
        # Ready at its first start; every later one fails, since the folder is there.
        stack.start(Part("dies", dies, ready=once.exists))
        pid = stack.states()["dies"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        thread = in_background(lambda: wait_until(lambda: stack.states()["dies"].restarts >= 5, "five tries"))
        stack.run()
        thread.join()
    delays = [record.args[1] for record in caplog.records if record.args]
    assert delays[:5] == [0.01, 0.02, 0.04, 0.04, 0.04]


def test_a_part_that_does_not_listen_is_killed(state_dir: Path, speaker: Speaker, diary: Diary) -> None:
    with Supervisor(state_dir) as stack:
        stack.start(Part("deaf", speaker("deaf", deaf=True), ready=lambda: bool(diary()), grace_s=0.2))
        pid = stack.states()["deaf"].pid
        assert pid is not None
    assert not start_mark(pid)
    assert diary() == ["deaf started", "deaf asked to end"]


def test_a_part_that_fails_at_the_start_is_quoted_and_the_others_end(
    state_dir: Path, speaker: Speaker, diary: Diary
) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('no such table: events')"]
    with (
        pytest.raises(
            NotReadyError, match=r'bad did not start: its log ends with "no such table: events"; see .*bad\.log'
        ),
        Supervisor(state_dir) as stack,
    ):
        stack.start(Part("good", speaker("good"), ready=lambda: bool(diary())))
        stack.start(Part("bad", fails, ready=lambda: False))
    assert diary() == ["good started", "good asked to end"]


def test_a_part_that_is_never_ready_is_told_with_the_time(state_dir: Path, speaker: Speaker) -> None:
    part = Part("slow", speaker("slow"), ready=lambda: False, ready_timeout_s=0.2)
    with (
        pytest.raises(NotReadyError, match="slow was not ready after 0 s: it wrote nothing"),
        Supervisor(state_dir) as stack,
    ):
        stack.start(part)


def test_a_program_that_is_missing_is_one_line(state_dir: Path) -> None:
    with (
        pytest.raises(NotReadyError, match="cannot run /no/such/program: No such file"),
        Supervisor(state_dir) as stack,
    ):
        stack.start(Part("part", ["/no/such/program"], ready=lambda: False))


def test_a_log_that_cannot_be_written_is_one_line(state_dir: Path, speaker: Speaker) -> None:
    (state_dir / "logs" / "part.log").mkdir(parents=True)
    with (
        pytest.raises(UserError, match=r"cannot start part: Is a directory \(.*part\.log\)"),
        Supervisor(state_dir) as stack,
    ):
        stack.start(Part("part", speaker("part")))


def test_a_signal_during_the_start_ends_the_stack_quietly(state_dir: Path, speaker: Speaker, diary: Diary) -> None:
    reached = False
    with Supervisor(state_dir) as stack:
        stack.start(Part("first", speaker("first"), ready=lambda: bool(diary())))
        os.kill(os.getpid(), signal.SIGINT)
        stack.start(Part("second", speaker("second"), ready=lambda: False))
        reached = True
    assert not reached
    assert "first asked to end" in diary()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stack_killed_with_9_leaves_no_part_and_no_lock(
    state_dir: Path, speaker: Speaker, diary: Diary, run_script: RunScript, wait_until: WaitUntil
) -> None:
    owner = run_script(f"""
import json, pathlib
from services.embedded.supervisor import Endpoints, Part, Supervisor
diary = pathlib.Path({str(state_dir.parent / "diary")!r})
with Supervisor(pathlib.Path({str(state_dir)!r})) as stack:
    for name, argv in {[(name, speaker(name)) for name in ("one", "two")]!r}:
        stack.start(Part(name, argv, ready=lambda: diary.exists() and name + " started" in diary.read_text()))
    stack.publish(Endpoints())
    print(json.dumps([state.pid for state in stack.states().values()]), flush=True)
    stack.run()
""")
    assert owner.stdout is not None
    pids = json.loads(owner.stdout.readline())

    with pytest.raises(UserError, match=rf"held by a running stack \(pid {owner.pid}\)"), Supervisor(state_dir):
        pass
    assert all(start_mark(pid) for pid in pids)
    assert run_file.require(state_dir).pid == owner.pid

    owner.kill()
    wait_until(lambda: not any(start_mark(pid) for pid in pids), "all parts have ended", 5)
    assert "one asked to end" not in diary()
    assert run_file.read(state_dir) is None
    with pytest.raises(UserError, match="no stack runs from"):
        run_file.require(state_dir)
    with Supervisor(state_dir) as stack:
        assert stack.states() == {}


def test_down_ends_a_running_stack_in_order(
    state_dir: Path, speaker: Speaker, diary: Diary, run_script: RunScript, wait_until: WaitUntil
) -> None:
    owner = run_script(f"""
import pathlib
from services.embedded.supervisor import Endpoints, Part, Supervisor
with Supervisor(pathlib.Path({str(state_dir)!r})) as stack:
    stack.start(Part("part", {speaker("part")!r}, ready=pathlib.Path({str(state_dir.parent / "diary")!r}).exists))
    stack.publish(Endpoints(socket="/run/x.sock"))
    print("up", flush=True)
    stack.run()
""")
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    assert run_file.require(state_dir).endpoints == Endpoints(socket="/run/x.sock")
    assert run_file.stop(state_dir)
    assert owner.wait(5) == 0
    assert diary() == ["part started", "part asked to end"]
    assert not run_file.stop(state_dir)


def test_a_part_outlives_the_thread_that_started_it(
    state_dir: Path, speaker: Speaker, diary: Diary, run_script: RunScript, wait_until: WaitUntil
) -> None:
    """The kernel's death signal comes when a thread ends, and a pool's threads come and go."""
    owner = run_script(f"""
import pathlib, threading
from services.embedded.part import Part, PartProcess
folder = pathlib.Path({str(state_dir)!r})
folder.mkdir()
process = PartProcess(Part("part", {speaker("part")!r}), folder)
thread = threading.Thread(target=process.start)
thread.start()
thread.join()
print(process.pid, flush=True)
input()
""")
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    wait_until(diary, "the part runs its program")
    assert start_mark(pid)
    owner.kill()
    wait_until(lambda: not start_mark(pid), "the part has ended with the process", 5)


def test_a_large_log_is_set_aside_at_the_next_start(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, speaker: Speaker
) -> None:
    monkeypatch.setattr("services.embedded.part._LOG_BYTES", 100)
    log = state_dir / "logs" / "part.log"
    log.parent.mkdir(parents=True)
    log.write_text("x" * 101)
    with Supervisor(state_dir) as stack:
        stack.start(Part("part", speaker("part")))
    assert log.with_name("part.log.1").read_text() == "x" * 101
    assert log.stat().st_mode & 0o777 == 0o600


def test_ports_are_outside_the_range_of_outgoing_connections() -> None:
    from services.embedded.host import free_port, require_free

    port = free_port()
    assert 18_000 <= port < 32_000
    require_free(port, "kafka")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(UserError, match=f"port {port} for kafka is in use"):
        require_free(port, "kafka")
