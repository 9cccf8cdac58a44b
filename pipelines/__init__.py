"""Stream processors: pure operators, and the one runtime that does their I/O."""
