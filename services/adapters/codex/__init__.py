"""Codex: the payloads of its hooks as events."""

from services.adapters.codex.adapter import CONTRACT, RUNTIME, VERSIONS, normalise

__all__ = ["CONTRACT", "RUNTIME", "VERSIONS", "normalise"]
