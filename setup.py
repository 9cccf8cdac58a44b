"""Builds the hook command where the project is installed; everything else about the build is in pyproject.toml.

The command is C because an agent waits for it at each tool call, and a shell script under the same name where no
compiler works, so that an installation never fails for want of one.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup  # before distutils: setuptools brings its own, Python 3.12 has none
from setuptools.command.bdist_wheel import bdist_wheel

from distutils.command.build_scripts import build_scripts  # isort: skip

COMMAND = "agenttrace-hook"
SOURCE = Path("services", "forwarder", "agenttrace_hook.c")
FALLBACK = Path("services", "forwarder", "agenttrace-hook.sh")


def compile_hook(target: Path) -> str | None:
    """Compile SOURCE to `target`; None when that worked, else the reason in a few words."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, "-std=c11", "-O2", "-o", str(target), str(SOURCE)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    if result.returncode == 0:
        return None
    return (result.stderr.strip().splitlines() or [f"{compiler[0]} exited with {result.returncode}"])[0]


class BuildHook(build_scripts):
    """Puts the compiled command, or the script in its place, where distutils collects scripts."""

    native = False

    def run(self) -> None:
        folder = Path(self.build_dir)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        target = folder / COMMAND
        reason = compile_hook(target)
        BuildHook.native = reason is None
        if reason is not None:
            shutil.copyfile(FALLBACK, target)
            note = f"{COMMAND}: not compiled ({reason}); installing the shell version, which only spools"
            print(note, file=sys.stderr)
        target.chmod(0o755)


class TagWheel(bdist_wheel):
    """A wheel that holds a binary fits one platform, though any Python 3; one with the script fits all."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        # An editable install asks for the tag before it builds.
        self.run_command("build_scripts")
        if not BuildHook.native:
            return python, abi, platform
        self.root_is_pure = False
        try:
            return python, abi, super().get_tag()[2]
        finally:
            self.root_is_pure = True


setup(scripts=[str(FALLBACK)], cmdclass={"build_scripts": BuildHook, "bdist_wheel": TagWheel})
