"""Client configurations rewritten so that their MCP servers run through the proxy, and restored.

Only the characters of `command`, `args` and `url` change: the file is never parsed and printed again. Its parsers say
where those values stand, the edits are made there, and the outcome is parsed and compared with what it must mean.
"""
