"""The keyed hash is HMAC-SHA256, whatever the lengths."""

from __future__ import annotations

import hmac

import pytest

from services.capture.keyed import Keyed


@pytest.mark.parametrize("key", [b"k" * 16, b"k" * 63, b"k" * 64, b"k" * 65, b"k" * 200])
@pytest.mark.parametrize("size", [0, 1, 55, 64, 2047, 2048, 4094, 4095, 16384, 16385, 70_000])
def test_it_is_hmac_sha256_for_every_length_of_key_and_text(key: bytes, size: int) -> None:
    body = bytes(n % 251 for n in range(size))
    keyed = Keyed(key)
    assert keyed.hex(body) == hmac.digest(key, body, "sha256").hex()
    # The states for the key are as they were.
    assert keyed.hex(body) == hmac.digest(key, body, "sha256").hex()
