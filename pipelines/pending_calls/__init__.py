"""Tool calls that never ended: timed out, or abandoned by a session that is over."""
