"""The public packages that the harnesses run: from npm, with a Node of their own, and from PyPI, in an environment of their
own. Both are installed once, below `.venv/conformance`; nothing is installed globally and nothing is added to `.venv`.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import UserError

HERE = Path(__file__).parent
FOLDER = Path(sys.prefix) / "conformance"
MODULES = FOLDER / "node_modules"
NODE = MODULES / ".bin" / "node"
PYTHON = FOLDER / "python" / "bin" / "python"
WHY_NO_NPM = "npm is not installed; the packages of tests/conformance/package.json come from it"


def npm() -> str | None:
    """The path of npm, if there is one."""
    return shutil.which("npm")


def node_packages() -> None:
    """Installs package.json unless it is already there as it is now. Raises UserError where that fails."""
    found = npm()
    if found is None:
        raise UserError(f"{WHY_NO_NPM}; install Node.js, of any version")
    _once("package.json", lambda: [[found, "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]])


def python_packages() -> None:
    """Installs requirements.txt unless it is already there as it is now. Raises UserError where that fails."""

    def commands() -> list[list[str]]:
        venv.create(PYTHON.parent.parent, with_pip=True, clear=True)
        return [[str(PYTHON), "-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"]]

    _once("requirements.txt", commands)


def module(package: str, *parts: str) -> str:
    """The path of a file of an npm package."""
    return str(MODULES.joinpath(package, *parts))


def _once(name: str, commands: Callable[[], list[list[str]]]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted, stamp = (HERE / name).read_text(), FOLDER / f".{name}.installed"
    with _alone():
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"installing tests/conformance/{name} into {FOLDER} (once, about half a minute)", file=sys.stderr)
        (FOLDER / name).write_text(wanted)
        for command in commands():
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                raise UserError(f"tests/conformance/{name} could not be installed: {said[0]}")
        stamp.write_text(wanted)


@contextmanager
def _alone() -> Iterator[None]:
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
