"""The constants of the C source and of the script against those that the collector imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.forwarder import protocol

pytestmark = pytest.mark.unit

FOLDER = Path(protocol.__file__).parent
C_SOURCE = (FOLDER / "agenttrace_hook.c").read_text()
SCRIPT = (FOLDER / "agenttrace-hook.sh").read_text()
IDENTIFIER = "01a22e20-fab8-7712-9e5e-2f2183c70000"


def _numbers(pattern: str, text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def test_limits_agree():
    in_c = _numbers(r"^#define ([A-Z_]+) (\d+)$", C_SOURCE)
    in_script = _numbers(r"^([A-Z_]+)=(\d+)$", SCRIPT)
    shared = in_c.keys() & vars(protocol).keys()
    assert shared >= {"WIRE_VERSION", "TIMEOUT_MS", "STDIN_IDLE_MS", *in_script}
    assert {name: in_c[name] for name in shared} == {name: getattr(protocol, name) for name in shared}
    assert in_script == {name: getattr(protocol, name) for name in in_script}
    assert len(in_script) == 8


@pytest.mark.parametrize("form", [C_SOURCE, SCRIPT], ids=["c", "sh"])
def test_names_agree(form):
    names = [
        protocol.ENV_HOME,
        protocol.ENV_SPOOL_MAX_BYTES,
        protocol.ENV_SPOOL_MAX_FILES,
        protocol.SPOOL_MAGIC,
        protocol.OVERSIZED_KEY,
        protocol.DEFAULT_HOME.removeprefix("~"),
    ]
    files = [
        protocol.SPOOL_TEMPORARY_PREFIX,
        protocol.SPOOL_FILES_COUNTER,
        protocol.SPOOL_BLOCKS_COUNTER,
        protocol.SPOOL_FULL_MARK,
        protocol.SPOOL_DROPPED,
    ]
    assert [name for name in names + files if name not in form] == []


def test_names_only_the_native_form_has():
    names = [protocol.ENV_SOCKET, protocol.ENV_TIMEOUT_MS, protocol.SOCKET_NAME]
    headers = [protocol.HEADER_DELIVERY, protocol.HEADER_PID, protocol.HEADER_OVERSIZED]
    assert [name for name in names + [f"{header}: " for header in headers] if name not in C_SOURCE] == []


def test_a_spool_file_is_taken_apart():
    plain = protocol.parse_spool_file(b"agenttrace-spool/1 pid=7\n{\n}")
    assert plain == protocol.SpooledDelivery(pid=7, oversized_bytes=None, body=b"{\n}")
    marker = protocol.parse_spool_file(b"agenttrace-spool/1 pid=7 oversized=99\n{}")
    assert marker == protocol.SpooledDelivery(pid=7, oversized_bytes=99, body=b"{}")


@pytest.mark.parametrize("torn", [b"", b"agenttrace-spool/1 pid=7", b"\0" * 50, b"agenttrace-spool/2 pid=7\n", b"{}\n"])
def test_a_torn_spool_file_is_an_error_that_says_so(torn):
    with pytest.raises(ValueError, match="agenttrace-spool/1"):
        protocol.parse_spool_file(torn)


def test_drops_are_read_in_any_mixture():
    record = f"{IDENTIFIER} 0000000123\n".encode()
    drops = protocol.parse_dropped(record + b"+" + record[:20] + b"\n++" + record)
    assert drops == protocol.Drops(named=[(IDENTIFIER, 123)] * 2, unnamed=3, at_least=False)
    assert protocol.parse_dropped(b"+" * protocol.DROPPED_MAX_BYTES).at_least


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (IDENTIFIER, True),
        (IDENTIFIER.upper(), False),
        (IDENTIFIER[:-1] + "1", False),
        (IDENTIFIER.replace("-7", "-4"), False),
        (IDENTIFIER + "\n", False),
        ("", False),
    ],
)
def test_what_a_delivery_id_is(text, valid):
    assert protocol.is_delivery_id(text) is valid


@pytest.mark.parametrize(
    ("name", "valid"),
    [("claude_code", True), ("a-1", True), ("x" * 33, False), ("", False), ("A", False), ("a\n", False)],
)
def test_what_a_runtime_is(name, valid):
    assert protocol.is_runtime(name) is valid
