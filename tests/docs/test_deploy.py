"""What deploy/ calls exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.commands import cli

pytestmark = pytest.mark.contract

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_each_unit_starts_a_command_that_exists(unit: Path) -> None:
    [command] = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    name = command.split()[-1]
    found = cli.get_command(None, name)  # type: ignore[arg-type]
    assert found is not None and found.name == name


def test_there_are_units() -> None:
    assert len(UNITS) == 3
