"""Kills, full disks, missing rights and rivals: the file is the old one or the new one, and an undo still works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.mcp_proxy.wrap.wrapping import CONFIGS, PROGRAM, placed, refused, run

pytestmark = pytest.mark.integration

# Ends the process by SIGKILL at the n-th step that touches a file in the folders named, before the step is made.
KILLED = """
import os, signal, sys
step, folders = int(sys.argv[1]), sys.argv[2].split(":")
watched = {"open", "os.rename", "os.remove", "os.chmod", "os.chown", "os.mkdir", "os.listdir", "os.scandir", "tempfile.mkstemp"}
def hook(event, args):
    global step
    if event in watched and any(str(part).startswith(tuple(folders)) for part in args):
        step -= 1
        if step == 0:
            os.kill(os.getpid(), signal.SIGKILL)
del sys.argv[1:3]
from services.cli.proxy_wrap import wrap
import services.mcp_proxy.wrap.plan, services.mcp_proxy.wrap.toml
real = os.fsync
def fsync(descriptor):
    hook("open", folders)
    real(descriptor)
os.fsync = fsync
sys.addaudithook(hook)
wrap(sys.argv[1:])
"""


def process(script: str, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def wrapped(name: str, folder: Path) -> bytes:
    path = placed(name, folder)
    run(path)
    return path.read_bytes()


@pytest.mark.parametrize("flags", [(), ("--undo",)])
def test_a_kill_between_any_two_steps(flags: tuple[str, ...], tmp_path: Path, home: Path) -> None:
    original = (CONFIGS / "codex.toml").read_bytes()
    new = wrapped("codex.toml", tmp_path / "once")
    step, states = 0, []
    while True:
        step += 1
        path = placed("codex.toml", tmp_path / str(step))
        if flags:
            run(path)
        ended = process(KILLED, step, f"{tmp_path}:{home}", path, *flags)
        assert ended.returncode in (0, -9), ended.stderr
        states.append(path.read_bytes())
        assert states[-1] in (original, new)
        if flags:
            run(path, "--undo")
            assert path.read_bytes() == original
            run(path)
        else:
            run(path)
            assert path.read_bytes() == new
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        run(path, "--undo")
        assert path.read_bytes() == original
        if ended.returncode == 0:
            break
    # Both happened: killed before the file was replaced, and after.
    assert states[0] != states[-2] == states[-1]
    assert step > 8


def test_a_disk_without_room(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {f"s{number}": {"command": "x"} for number in range(30)}}))
    script = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from services.cli.main import main
import services.mcp_proxy.wrap.plan, services.mcp_proxy.wrap.jsonc, services.cli.proxy_wrap
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
main()
"""
    before = path.read_bytes()
    for room in (0, 100, 2500):  # the record does not fit; the record does, the file does not
        ended = process(script, room, "proxy", "wrap", path)
        assert ended.returncode in (73, 77)
        assert ended.stderr.count("\n") == 1 and "nothing was changed" in ended.stderr
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        assert [file.name for file in (home / "wrapped").iterdir()] == ["lock"]


def test_a_read_only_file(tmp_path: Path, home: Path) -> None:
    path = placed("codex.toml", tmp_path)
    path.chmod(0o444)
    status = path.stat()
    error = refused(path)
    assert str(error).startswith(f"{path}: read-only; nothing was changed") and error.exit_code == 77
    assert path.stat() == status
    assert not list((home / "wrapped").glob("*.json"))
    run(path, "--check", code=1)
    run(path, "--dry-run")


@pytest.fixture
def read_only_folder(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A file in a folder where nobody may write, and what a command line begins with to be such a nobody."""
    path = placed("codex.toml", tmp_path / "folder")
    if os.geteuid():
        path.parent.chmod(0o555)
        yield path, []
        path.parent.chmod(0o755)
        return
    # The superuser may write anywhere but on a file system that is mounted read-only.
    folder = path.parent
    mounts = f'mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind "{folder}" && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", mounts, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a superuser without mount namespaces")
    yield path, inside


def test_a_read_only_folder(read_only_folder: tuple[Path, list[str]], home: Path) -> None:
    path, inside = read_only_folder
    before = path.read_bytes()
    command = [*inside, sys.executable, "-m", "services.cli.main", "proxy", "wrap", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 77
    assert ended.stderr.startswith(f"agenttrace: {path}: ") and ended.stderr.count("\n") == 1
    assert "nothing was changed" in ended.stderr
    assert path.read_bytes() == before
    assert not list((home / "wrapped").glob("*.json"))


def test_a_file_that_changes_while_it_is_wrapped(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = placed("codex.toml", tmp_path)
    before, real = path.read_bytes(), os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        path.write_bytes(before + b"# meanwhile\n")

    with monkeypatch.context() as forced:
        forced.setattr(os, "fsync", fsync)
        error = refused(path)
    assert "changed meanwhile; nothing was written. Run it again" in str(error) and error.exit_code == 75
    assert path.read_bytes() == before + b"# meanwhile\n"
    assert not list((home / "wrapped").glob("*.json"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_owner_and_a_mode_are_kept(tmp_path: Path) -> None:
    path = placed("codex.toml", tmp_path)
    path.chmod(0o604)
    if not os.geteuid():
        os.chown(path, 4321, 1234)
    status = path.stat()
    run(path)
    found = path.stat()
    assert found.st_ino != status.st_ino
    assert (found.st_mode, found.st_uid, found.st_gid) == (status.st_mode, status.st_uid, status.st_gid)


def test_many_at_once(tmp_path: Path) -> None:
    """Eight wraps of one file, then eight undos: as one of each."""
    path = placed("claude_user.json", tmp_path)
    new = wrapped("claude_user.json", tmp_path / "alone")
    for flags, result in (((), new), (("--undo",), (CONFIGS / "claude_user.json").read_bytes())):
        command = [PROGRAM, "proxy", "wrap", str(path), *flags]
        rivals = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(8)]
        seen = {path.read_bytes()}
        while any(rival.poll() is None for rival in rivals):
            seen.add(path.read_bytes())
        assert [rival.wait() for rival in rivals] == [0] * 8
        assert path.read_bytes() == result
        assert seen <= {new, (CONFIGS / "claude_user.json").read_bytes()}
        assert [file.name for file in path.parent.iterdir() if file.is_file()] == [path.name]


def test_a_client_starts_the_wrapped_server(tmp_path: Path, home: Path) -> None:
    """As clients do: with a small environment, no PATH to us, from another folder."""
    server = tmp_path / "ein server.py"
    server.write_text(
        "import os, sys\nfor line in sys.stdin:\n    print(os.environ['KEY'], sys.argv[1:], line.strip())\n"
    )
    config = tmp_path / ".mcp.json"
    entry = {"command": sys.executable, "args": [str(server), "--", "-x", "ü", "a b"], "env": {"KEY": "k"}}
    config.write_text(json.dumps({"mcpServers": {"the server": entry}}))

    def answer() -> bytes:
        found = json.loads(config.read_bytes())["mcpServers"]["the server"]
        environment = {"HOME": str(tmp_path), **found["env"]}
        return subprocess.run(
            [found["command"], *found["args"]],
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            stdout=subprocess.PIPE,
            cwd="/",
            env=environment,
            timeout=60,
            check=True,
        ).stdout

    direct = answer()
    run(config)
    assert json.loads(config.read_bytes())["mcpServers"]["the server"]["command"] == PROGRAM
    assert answer() == direct
    assert b"['--', '-x', '\xc3\xbc', 'a b']" in direct


def test_the_program_that_is_written_is_the_one_that_runs(tmp_path: Path) -> None:
    path = placed("codex.toml", tmp_path)
    link = tmp_path / "bin" / "agenttrace"
    link.parent.mkdir()
    link.symlink_to(PROGRAM)
    for called in (link, "bin/agenttrace"):
        subprocess.run([called, "proxy", "wrap", path], cwd=tmp_path, check=True, capture_output=True)
        assert f'command = "{link}"' in path.read_text()
        run(path, "--undo")
    subprocess.run([sys.executable, "-m", "services.cli.main", "proxy", "wrap", path], check=True, capture_output=True)
    assert PROGRAM in path.read_text()
