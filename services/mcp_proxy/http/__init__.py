"""`agenttrace proxy http`: MCP over HTTP passes as it came, framing included; a copy of each exchange goes into the tap."""
