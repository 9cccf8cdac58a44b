"""The Capture that the configuration asks for; the one place where its key is read."""

from __future__ import annotations

from pathlib import Path

from schemas.config import Config
from services.capture.content import Capture, CaptureSettings
from services.config import hash_key


def from_config(config: Config, folder: Path) -> Capture:
    """Levels, limits and key for this install; `folder` holds the key where none is given. Raises UserError."""
    key, key_id = hash_key(folder)
    return Capture(settings(config, key, key_id))
