"""Adapters: one folder per agent runtime, each a pure function from a native hook payload to events."""
