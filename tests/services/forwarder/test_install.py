"""What an installation puts under the command's name, with a compiler and without one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from services.forwarder import protocol

pytestmark = pytest.mark.integration

ROOT = Path(protocol.__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy with only what the build of the command reads, so that nothing is left in the tree."""
    copy = tmp_path / "project"
    shutil.copytree(ROOT / "services" / "forwarder", copy / "services" / "forwarder")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def _wheel(project: Path, compiler: str) -> tuple[Path, str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "--wheel-dir",
        str(project / "out"),
        str(project),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CC": compiler}, check=False)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("no package index to get setuptools from")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (project / "out").glob("*.whl")
    return wheel, done.stdout + done.stderr


def _script(wheel: Path) -> tuple[bytes, int]:
    """The command inside the wheel: (content, file mode)."""
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith(f"/scripts/{protocol.COMMAND}"))
        return archive.read(entry), entry.external_attr >> 16 & 0o777


@pytest.mark.parametrize("found", [True, False])
def test_a_wheel_holds_the_command(project, found, tmp_path):
    compiler = os.environ.get("CC") or "cc"
    if found and shutil.which(shlex.split(compiler)[0]) is None:
        pytest.skip("no C compiler")
    wheel, log = _wheel(project, compiler if found else "/nonexistent/cc")
    content, mode = _script(wheel)
    assert mode == 0o755
    assert wheel.name.endswith("-py3-none-any.whl") is not found
    assert "-py3-none-" in wheel.name
    assert content.startswith(b"#!/bin/sh") is not found
    notes = [line for line in log.splitlines() if "not compiled" in line]
    assert len(notes) == (0 if found else 1)
    command = tmp_path / protocol.COMMAND
    command.write_bytes(content)
    command.chmod(0o755)
    said = subprocess.run([command, "--version"], capture_output=True, stdin=subprocess.DEVNULL, check=True).stderr
    assert (b"native" in said) is found


def test_a_broken_compiler_is_no_compiler(project):
    wheel, log = _wheel(project, "false")
    assert _script(wheel)[0].startswith(b"#!/bin/sh")
    assert "not compiled (false exited with 1)" in log
