"""Adapter for OpenClaw plugin hooks."""

from services.adapters.openclaw.adapter import CONTRACT, RUNTIME, VERSIONS, normalise

__all__ = ["CONTRACT", "RUNTIME", "VERSIONS", "normalise"]
