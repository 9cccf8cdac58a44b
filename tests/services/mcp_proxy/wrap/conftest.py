from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AGENTTRACE_HOME of this test alone."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("AGENTTRACE_HOME", str(folder))
    return folder
