"""Word lists in source: a paragraph of names reads better than a column of strings."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The blank-separated words of a text."""
    return tuple(text.split())
