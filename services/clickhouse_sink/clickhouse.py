"""Clients for ClickHouse, and what its errors mean: the owner's to mend, the data's fault, or worth another try."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError

from schemas.errors import UserError

CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 60

_AUTHENTICATION_FAILED = 516
_UNKNOWN_DATABASE = 81
_TOO_BIG = frozenset({241})
"""MEMORY_LIMIT_EXCEEDED: half of the rows may pass."""
_DATA = frozenset(
    (6, 7, 25, 26, 27, 32, 33, 34, 38, 41, 43, 53, 69, 70, 72, 117, 125, 128, 130, 131, 321, 349, 395, 407, 469, 636)
)
"""Codes (ClickHouse, src/Common/ErrorCodes.cpp) that a value can cause and that the same value causes again: cannot
parse, wrong type, out of range, constraint violated. Any other code is taken for a server in trouble: tried again."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Away(Exception):
    """ClickHouse cannot take rows now; trying again later may help."""


class Refused(Exception):
    """ClickHouse refused these rows and would again; the text holds nothing of them."""


class TooBig(Exception):
    """ClickHouse had not the memory for these rows at once."""


def place(dsn: str) -> str:
    """`HOST:PORT` of a DSN, without its password."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'localhost'}:{parts.port or 8123}"


def database(dsn: str) -> str:
    """The database that a DSN names."""
    return unquote(urlsplit(dsn).path.strip("/")) or "default"


def connect(dsn: str) -> Client:
    """A client. Raises UserError; its exit code is EX_UNAVAILABLE where nothing answers."""
    try:
        return clickhouse_connect.get_client(dsn=dsn, **_options(dsn))
    except (ClickHouseError, OSError) as error:
        raise explain(error, dsn) from None
    except (TypeError, ValueError) as error:
        raise _unreadable(error) from None


def explain(error: Exception, dsn: str) -> UserError:
    """An error outside of inserts as one line that says what to do."""
    code, at = getattr(error, "code", None), place(dsn)
    if code == _AUTHENTICATION_FAILED:
        return UserError(
            f"ClickHouse at {at} refused the login: check user and password in clickhouse.dsn", exit_code=os.EX_NOPERM
        )
    if code == _UNKNOWN_DATABASE:
        return UserError(f"ClickHouse at {at} has no database '{database(dsn)}': make it with `agenttrace migrate`")
    if code is None:
        cause = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
        return UserError(
            f"ClickHouse at {at} cannot be reached ({cause.group(1) if cause else type(error).__name__}): "
            "is it running, and is clickhouse.dsn right?",
            exit_code=os.EX_UNAVAILABLE,
        )
    return UserError(f"ClickHouse at {at}: {_first_line(error)}", exit_code=os.EX_SOFTWARE)


def _unreadable(error: Exception) -> UserError:
    # The client's own words may quote the whole address, password included.
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    what = f"unknown option '{found.group(1)}'" if found else "not a DSN"
    return UserError(f"clickhouse.dsn: {what}; it looks like http://USER:PASSWORD@HOST:8123/DATABASE")


def of_insert(error: Exception) -> Exception:
    """What a failed insert means: Away, Refused or TooBig. The server's text may quote the rows, so it is not kept."""
    code, name = getattr(error, "code", None), getattr(error, "name", None)
    if code in _DATA:
        return Refused(f"ClickHouse refused it: {name or 'code'} ({code}){_column(str(error))}")
    if isinstance(error, DataError):
        return Refused("the ClickHouse client cannot encode it")
    if code in _TOO_BIG:
        return TooBig(f"{name} ({code})")
    if code is not None:
        return Away(f"it answered {name or 'code'} ({code})")
    return Away(type(error).__name__)


def _options(dsn: str) -> dict[str, Any]:
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "send_receive_timeout": ANSWER_TIMEOUT_S,
        # On one machine compressing costs more than it saves.
        "compress": urlsplit(dsn).hostname not in _LOOPBACK,
        # A session would refuse the next insert for as long as a timed out one still runs.
        "autogenerate_session_id": False,
        "client_name": "agenttrace",
    }


def _column(text: str) -> str:
    found = re.search(r"Constraint `(\w{1,64})`", text)
    return f", constraint {found.group(1)}" if found else ""


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
