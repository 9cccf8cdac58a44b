"""`agenttrace journal` on a journal that a collector made: what is listed, shown, and found damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from services.cli.commands import cli
from services.cli.journal import journal
from services.collector.drops import rewrite
from services.collector.journal import Journal
from services.collector.reserve import Reserve
from tests.services.collector.running import POST, PRE, post, running, settings, until

pytestmark = pytest.mark.integration


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two epochs of a collector, all published to a file."""
    monkeypatch.setenv("AGENTTRACE_HOME", str(tmp_path))

    async def run() -> None:
        for epoch in range(2):
            async with running(settings(tmp_path)) as collector:
                for number in range(5):
                    for payload in (PRE, POST):
                        await post(collector, orjson.dumps({**payload, "tool_use_id": f"t{epoch}-{number}"}))
                await until(lambda collector=collector: collector.publishers[0].position == collector.journal.end)

    asyncio.run(run())
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(journal, words)


def flipped(line: bytes) -> bytes:
    """The line with one bit of its content changed."""
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def first_segment(home: Path) -> Path:
    folder = home / "collector" / "journal"
    return folder / Journal(folder).segments()[0]


def test_ls_lists_segments_with_their_seqs_and_who_has_them(home: Path) -> None:
    found = orjson.loads(run("ls", "--json").output)
    assert [(one["first"], one["published"]) for one in found["segments"]] == [
        ([1, 1], {"jsonl": "yes"}),
        ([2, 1], {"jsonl": "yes"}),
    ]
    assert [one["damaged"] for one in found["segments"]] == [0, 0]
    assert (found["reserve_lines"], found["losses_without_receipt"]) == (0, 0)
    text = run("ls").output
    assert "0000000002-0000000000000001" in text
    assert "2 segments" in text


def test_show_picks_by_seq_event_session_and_number(home: Path) -> None:
    events = [orjson.loads(line) for line in run("show", "--json").output.splitlines()]
    assert len(events) > 20
    picked = [orjson.loads(line) for line in run("show", "--json", "--seq", "2:3..5").output.splitlines()]
    assert [(event["producer"]["epoch"], event["producer"]["seq"]) for event in picked] == [(2, 3), (2, 4), (2, 5)]
    ended = run("show", "--event", "tool.call.completed", "--session", "s-1", "-n", "3").output.splitlines()
    assert len(ended) == 3
    assert all("tool.call.completed ok" in line and line.startswith("2:") for line in ended)
    assert run("show", "--session", "nobody").output == ""
    assert "no range" in run("show", "--seq", "x").output


def test_verify_is_silent_on_a_whole_journal_also_after_drops(home: Path) -> None:
    result = run("verify")
    assert (result.exit_code, result.output.splitlines()[-1].endswith(" 0 problems")) == (0, True)
    made = rewrite(first_segment(home), 1)
    assert made
    made.commit()
    assert run("verify").exit_code == 0
    assert len(run("show", "--seq", "1:1..99").output.splitlines()) < 11


def test_verify_names_file_and_offset_of_what_is_damaged_or_missing(home: Path) -> None:
    path = first_segment(home)
    lines = path.read_bytes().splitlines(keepends=True)
    offset = sum(map(len, lines[:3]))
    path.write_bytes(b"".join(lines[:3]) + flipped(lines[3]) + b"".join(lines[4:]))
    result = run("verify")
    assert result.exit_code == 65
    assert result.output.splitlines()[0] == f"{path}:{offset}: the line does not fit its checksum"
    assert orjson.loads(run("ls", "--json").output)["segments"][0]["damaged"] == 1
    path.write_bytes(b"".join(lines[:3] + lines[5:]))
    result = run("verify")
    assert result.exit_code == 65
    seq = [event["producer"]["seq"] for event in orjson.loads(lines[3][9:]) + orjson.loads(lines[4][9:])]
    assert f"{path}:{offset}: seqs 1:{seq[0]}..{seq[-1]} are missing before this line" in result.output
    path.write_bytes(b"".join([*lines, lines[-1]]))
    assert "comes after" in run("verify").output


def test_a_line_that_never_got_whole_is_no_damage(home: Path) -> None:
    with open(first_segment(home), "ab") as file:
        file.write(b"0000000")
    result = run("verify")
    assert result.exit_code == 0
    assert "7 bytes of a line that never got whole" in result.output


def test_verify_looks_into_the_reserve_and_changes_nothing(home: Path) -> None:
    reserve = Reserve(home / "collector" / "reserve")
    lines = first_segment(home).read_bytes().splitlines(keepends=True)
    reserve.append(lines[0])
    reserve.append(flipped(lines[1]))
    before = {path: path.read_bytes() for path in (home / "collector").rglob("*") if path.is_file()}
    result = run("verify")
    assert result.exit_code == 65
    assert f"{home / 'collector' / 'reserve'}:{len(lines[0])}: the line does not fit" in result.output
    assert "2 lines wait in the reserve" in run("ls").output
    assert before == {path: path.read_bytes() for path in (home / "collector").rglob("*") if path.is_file()}


async def test_it_reads_while_a_collector_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTTRACE_HOME", str(tmp_path))
    async with running(settings(tmp_path)) as collector:
        for number in range(3):
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
            result = await asyncio.to_thread(run, "verify")
            assert result.exit_code == 0
        assert len((await asyncio.to_thread(run, "show", "--event", "tool.call.started")).output.splitlines()) == 3


def test_without_a_journal_it_says_where_one_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTTRACE_HOME", str(tmp_path))
    for command in ("ls", "show", "verify"):
        error = run(command).exception
        assert str(tmp_path / "collector" / "journal") in str(error)


def test_every_command_has_examples() -> None:
    for words in ((), ("ls",), ("show",), ("verify",)):
        assert "Example" in CliRunner().invoke(cli, ["journal", *words, "--help"]).output
