"""Facts: what a tool call does (commands, paths, hosts, packages), read from its whole input by real parsers."""

from services.capture.facts.calls import extract

__all__ = ["extract"]
