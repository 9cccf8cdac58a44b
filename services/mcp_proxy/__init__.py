"""The MCP proxy: bytes pass as they came, a copy goes through the tap to a process that understands it."""
