"""What every test here starts with, and that none leaves a process behind, also when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.services.mcp_proxy.stdio import proxied


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = len(proxied.MADE)
    yield
    for made in proxied.MADE[before:]:
        for pid in made.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    del proxied.MADE[before:]


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """A run in the background of a shell ignores SIGINT and SIGQUIT, and so would every process that a test starts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
