"""A short form of what `make conformance` runs: the harnesses can tell a difference, and there is none."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from schemas.errors import UserError
from tests.conformance import fuzz, packages
from tests.conformance.run import REVISIONS, Leg, compared, differences
from tests.conformance.stdio import pairs
from tests.conformance.streams import cuts, stream

pytestmark = pytest.mark.integration

_CORRUPTING = """#!{python} -I
import os, subprocess, sys
server = subprocess.Popen(sys.argv[sys.argv.index("--") + 1 :], stdout=subprocess.PIPE)
while data := os.read(server.stdout.fileno(), 65536):
    os.write(1, data.replace(b"x", b"y"))
sys.exit(server.wait())
"""


@pytest.fixture
def corrupting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of `agenttrace proxy stdio` a program that changes a letter on the way to the client."""
    program = tmp_path / "corrupting"
    program.write_text(_CORRUPTING.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(fuzz, "AGENTTRACE", str(program))
    monkeypatch.setattr(pairs, "AGENTTRACE", str(program))


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def test_a_real_client_and_a_real_server_over_stdio(tmp_path: Path) -> None:
    found = pairs.compare("sdk", "ours", _folder(tmp_path))
    assert found.differing == []
    assert found.scenarios == 10
    assert found.bytes > 2 * 4 << 20


def test_the_stdio_harness_sees_a_changed_byte(tmp_path: Path, corrupting: None) -> None:
    found = pairs.compare("sdk", "ours", _folder(tmp_path))
    assert any("server to client" in line for line in found.differing)


async def test_generated_streams_over_stdio(tmp_path: Path) -> None:
    found = await fuzz.batch(300, 4, _folder(tmp_path))
    assert found.wrong == []
    assert found.streams == 300


async def test_the_fuzz_sees_a_changed_byte(tmp_path: Path, corrupting: None) -> None:
    found = await fuzz.batch(50, 4, _folder(tmp_path))
    assert any("came back otherwise" in line for line in found.wrong)


def test_cuts_leave_nothing_out() -> None:
    chance = random.Random(5)
    for _ in range(300):
        data = stream(chance)
        assert b"".join(cuts(data, chance)) == data


def test_a_missing_and_a_repeated_check_count_as_different() -> None:
    same = {"one": [("a", "SUCCESS"), ("a", "SUCCESS")], "two": [("b", "FAILURE")]}
    assert differences(same, {key: list(reversed(checks)) for key, checks in same.items()}) == []
    assert differences(same, same | {"one": [("a", "SUCCESS")]}) == ["one: a SUCCESS 2 × directly, 1 × proxied"]
    assert differences(same, {"one": same["one"]}) == ["two: b FAILURE 1 × directly, 0 × proxied"]
    assert len(differences(same, same | {"two": [("b", "SUCCESS")]})) == 2


@pytest.mark.skipif(packages.npm() is None, reason=packages.WHY_NO_NPM)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("revision", REVISIONS)
def test_the_official_suite_judges_alike_through_the_proxy(revision: str, tmp_path: Path) -> None:
    try:
        packages.node_packages()
    except UserError as error:
        pytest.skip(f"{error}")
    found = compared(Leg("server", revision), tmp_path / "out")
    assert found.differing == []
    assert found.checks >= {"2025-11-25": 84, "2026-07-28": 195}[revision]
