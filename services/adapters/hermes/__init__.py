"""Adapter for Hermes Agent plugin hooks and shell hooks."""

from services.adapters.hermes.adapter import CONTRACT, RUNTIME, VERSIONS, normalise

__all__ = ["CONTRACT", "RUNTIME", "VERSIONS", "normalise"]
