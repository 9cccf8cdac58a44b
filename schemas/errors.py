"""Errors meant for a person: one line that says what, where and what to do next."""

from __future__ import annotations

import os


class UserError(Exception):
    """A failure the user can act on; printed as one line, never as a traceback.

    `exit_code` follows sysexits.h: 64 usage, 65 data, 69 service unavailable, 73 cannot create, 75 try again,
    77 permission, 78 configuration.
    """

    def __init__(self, message: str, *, exit_code: int = os.EX_CONFIG) -> None:
        super().__init__(message)
        self.exit_code = exit_code
