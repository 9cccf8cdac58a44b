"""One redactor and one Capture for all tests of the capture layer: building the gate takes most of a second."""

from __future__ import annotations

import pytest

from services.capture.content import Capture, CaptureSettings
from services.capture.redaction import Redactor, RulePack

KEY = b"test key, thirty-two bytes long."


@pytest.fixture(scope="session")
def pack() -> RulePack:
    return RulePack.default()


@pytest.fixture(scope="session")
def redactor(pack: RulePack) -> Redactor:
    return Redactor(KEY, pack)


@pytest.fixture(scope="session")
def capture(pack: RulePack) -> Capture:
    return Capture(CaptureSettings(hash_key=KEY, key_id="t1"), pack)
