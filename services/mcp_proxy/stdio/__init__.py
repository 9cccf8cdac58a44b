"""A stdio MCP server behind a forwarder that passes every byte at once, and a supervisor that leaves no process behind."""
