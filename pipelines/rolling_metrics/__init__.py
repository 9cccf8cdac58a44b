"""Counts, error rates and durations of tool calls by key and window, as rows that any store can merge."""
