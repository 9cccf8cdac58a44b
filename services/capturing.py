"""The Capture that the configuration asks for; the one place where its key is read."""

from __future__ import annotations

from pathlib import Path

from schemas.config import CaptureSide, Config
from schemas.errors import UserError
from services.capture.content import Capture, CaptureLevel, CaptureSettings
from services.config import hash_key


def from_config(config: Config, folder: Path) -> Capture:
    """Levels, limits and key for this install; `folder` holds the key where none is given. Raises UserError."""
    key, key_id = hash_key(folder)
    given, got = config.capture.input, config.capture.output
    return Capture(
        CaptureSettings(
            hash_key=key,
            key_id=key_id,
            level_input=_level(given, config, "input"),
            level_output=_level(got, config, "output"),
            max_bytes_input=given.max_bytes,
            max_bytes_output=got.max_bytes,
            hash_input=given.hash,
            hash_output=got.hash,
            sample_rate=config.capture.sample_rate,
        )
    )


def _level(side: CaptureSide, config: Config, name: str) -> CaptureLevel:
    raw = side.mode == "full_raw" or not side.redact or not config.privacy.redact_secrets
    if raw and not config.privacy.raw_content_enabled:
        raise UserError(
            f"capture.{name} asks for content with secrets in it (mode full_raw, redact: false or privacy.redact_secrets: false); "
            "that also needs privacy.raw_content_enabled: true"
        )
    return CaptureLevel.FULL_RAW if raw else CaptureLevel(side.mode)
