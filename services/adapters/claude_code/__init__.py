"""Claude Code: the payloads of its hooks as events."""

from services.adapters.claude_code.adapter import CONTRACT, RUNTIME, VERSIONS, normalise

__all__ = ["CONTRACT", "RUNTIME", "VERSIONS", "normalise"]
