"""What events keep of a payload: sizes, hashes, summaries by level, native fields, ids, and the last scrub."""

from __future__ import annotations

import hmac
import threading
import time
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.canonical import canonical
from services.capture.content import MAX_FULL_BYTES, MAX_HASHED_BYTES, Capture, CaptureLevel, CaptureSettings
from services.capture.redaction import RulePack
from tests.services.capture.conftest import KEY
from tests.services.capture.samples import ANTHROPIC, AWS_ID, BEARER, JWT, PEM, SLACK

pytestmark = pytest.mark.unit


def at_level(pack: RulePack, level: CaptureLevel, **more: Any) -> Capture:
    return Capture(CaptureSettings(hash_key=KEY, key_id="t1", level_input=level, level_output=level, **more), pack)


def test_the_hash_is_keyed_and_over_the_canonical_form_before_redaction(capture: Capture) -> None:
    value = {"b": 1.0, "a": "password=hunter2"}
    expected = hmac.new(KEY, b'{"a":"password=hunter2","b":1}', "sha256").hexdigest()
    content = capture.content(value, direction="input")
    assert content.hash == f"hmac-sha256:t1:{expected}" == capture.hash(value)
    assert content.size_bytes == len(canonical(value))
    assert capture.content({"a": "password=hunter2", "b": 1}, direction="output").hash == content.hash
    assert capture.content({"a": "password=hunter3", "b": 1}, direction="output").hash != content.hash


def test_a_text_counts_its_bytes(capture: Capture) -> None:
    assert capture.content("grüße", direction="output").size_bytes == 7
    assert capture.content(None, direction="output").size_bytes == 4


def test_a_summary_is_redacted_first_and_cut_afterwards(capture: Capture) -> None:
    text = "x" * 4060 + f" key {AWS_ID} and more " + "y" * 5000
    content = capture.content(text, direction="output")
    assert content.summary is not None
    assert len(content.summary.encode()) <= 4096
    assert AWS_ID[:8] not in content.summary
    assert content.redaction_applied
    assert content.redactions == {"aws_access_key": 1}


def test_findings_behind_the_cut_are_counted(capture: Capture) -> None:
    content = capture.content({"pad": "x " * 5000, "z": f"{SLACK} {SLACK} {AWS_ID}"}, direction="output")
    assert content.redactions == {"slack_token": 2, "aws_access_key": 1}


def test_levels(pack: RulePack) -> None:
    value = {"command": f"curl -H 'Authorization: Bearer {BEARER}' x", "pad": "p " * 4000}
    off = at_level(pack, CaptureLevel.OFF).content(value, direction="input")
    assert off.summary is None
    assert off.redactions == {}
    assert off.hash
    full = at_level(pack, CaptureLevel.FULL_REDACTED).content(value, direction="input")
    assert full.summary is not None
    assert BEARER not in full.summary
    assert len(full.summary) > 8000
    raw = at_level(pack, CaptureLevel.FULL_RAW).content(value, direction="input")
    assert raw.summary is not None
    assert BEARER in raw.summary
    assert not raw.redaction_applied
    huge = at_level(pack, CaptureLevel.FULL_REDACTED).content("word " * 100_000, direction="output")
    assert huge.summary is not None
    assert len(huge.summary.encode()) <= MAX_FULL_BYTES
    assert {"off", "summary", "sampled", "full_redacted", "full_raw"} == {str(level) for level in CaptureLevel}


def test_directions_have_their_own_settings(pack: RulePack) -> None:
    settings_ = CaptureSettings(
        hash_key=KEY, key_id="t1", level_input=CaptureLevel.OFF, max_bytes_output=100, hash_output=False
    )
    capture = Capture(settings_, pack)
    assert capture.content({"a": 1}, direction="input").summary is None
    out = capture.content("long text " * 100, direction="output")
    assert out.summary is not None
    assert len(out.summary.encode()) <= 100
    assert out.hash is None


def test_sampling_is_decided_by_the_value_and_keeps_about_its_share(pack: RulePack) -> None:
    capture = at_level(pack, CaptureLevel.SAMPLED, sample_rate=0.25)
    kept = [capture.content(f"value {n}", direction="output").summary is not None for n in range(400)]
    assert kept == [capture.content(f"value {n}", direction="output").summary is not None for n in range(400)]
    assert 60 <= sum(kept) <= 140
    assert at_level(pack, CaptureLevel.SAMPLED, sample_rate=0).content("x", direction="input").summary is None
    assert at_level(pack, CaptureLevel.SAMPLED, sample_rate=1).content("x", direction="input").summary == "x"


class TestLarge:
    def test_above_a_mebibyte_there_is_a_raw_hash_and_no_summary(self, capture: Capture) -> None:
        value = {"z": "filler " * 200_000, "a": f"x {SLACK}"}
        content = capture.content(value, direction="output")
        body = orjson.dumps(value)
        assert (
            content.hash == f"hmac-sha256:t1:raw:{hmac.new(KEY, body, 'sha256').hexdigest()}" == capture.raw_hash(body)
        )
        assert content.size_bytes == len(body) > MAX_HASHED_BYTES
        assert content.summary is None
        assert content.redactions == {"slack_token": 1}

    def test_secrets_at_window_borders_are_found_once_each(self, capture: Capture) -> None:
        step = 10_007
        text = "".join(f"{SLACK}{n:03}\n".rjust(step, ".") for n in range(160))
        assert len(text) > MAX_HASHED_BYTES
        content = capture.content(text, direction="output")
        assert content.redactions == {"slack_token": 160}
        facts = capture.output_facts(text)
        assert facts.secret_kinds == ("slack_token",)
        assert len(facts.fingerprints) == 64
        assert facts.truncated

    def test_a_private_key_at_a_border_is_seen(self, capture: Capture) -> None:
        for at in (256 * 1024 - 100, 256 * 1024 - 16 * 1024 - 50, 256 * 1024 - 8 * 1024):
            text = "." * at + "\n" + PEM + "\n" + "." * MAX_HASHED_BYTES
            assert capture.content(text, direction="output").redactions == {"private_key": 1}


def test_text_is_redacted_and_cut(capture: Capture) -> None:
    done = capture.text(f"failed with token {JWT} " + "z " * 3000, max_bytes=200)
    assert JWT[:20] not in done
    assert len(done.encode()) <= 200


def test_ids_stay_and_secrets_in_their_place_do_not(capture: Capture) -> None:
    for ident in (
        "0c41c241-8fc4-4f7b-b3ed-2e83a6e147b2",
        "toolu_01A09q90qw90lq917835lq9",
        "call_main030",
        "fc_68f0b1c2d3e4f5a6b7c8d9e0",
        "agent:main:main",
        "mcp__everything__get-sum",
        "chatcmpl-123456789012345678901234567890",
        "01JQ5Z3K9V8M7N6P5R4S3T2W1X",
        "4111111111111111f",
        "session_2026-01-13T10-00-00_abcdef",
        "call_Zs1rTkGkTTlCxDO5pLVWB9aA",
        "resp_0b8bb24bd5fd1a2c0068f0b1c2d3e4f5a6",
    ):
        assert capture.ident(ident) == ident
    assert AWS_ID not in capture.ident(f"session-{AWS_ID}")
    assert len(capture.ident("x" * 5000).encode()) <= 256


class TestNative:
    def test_it_is_redacted_and_bounded(self, capture: Capture) -> None:
        payload = {
            "permission_mode": "default",
            "api_key": "abc123",
            "long": "y" * 5000,
            "deep": {"a": {"b": [1] * 2000}},
            "note": f"k {ANTHROPIC}",
        }
        done = capture.native(payload)
        assert done["permission_mode"] == "default"
        assert done["api_key"].startswith("‹redacted:api_key:")
        assert ANTHROPIC not in done["note"]
        assert done["long"] == {"size_bytes": 5002, "hash": capture.hash("y" * 5000)}
        assert done["deep"]["size_bytes"] > 4000
        assert payload["api_key"] == "abc123"

    def test_many_fields_are_cut_and_it_says_so(self, capture: Capture) -> None:
        done = capture.native({f"k{n}": "v" * 100 for n in range(500)})
        assert len(orjson.dumps(done)) < 8000
        assert done["…"].startswith("+")

    def test_whatever_comes(self, capture: Capture) -> None:
        deep: Any = {}
        for _ in range(5000):
            deep = {"k": deep}
        for value in (None, [], "text", 3, deep, {"x": deep}, {"x": float("nan")}, {1: 2}, {"\ud800": "\udfff"}):
            orjson.dumps(capture.native(value), option=orjson.OPT_NON_STR_KEYS)


def event(**more: Any) -> dict[str, Any]:
    return {
        "event_id": "0199aaaa-1111-7222-8333-444455556666",
        "event_name": "tool.call.completed",
        "timestamp": "2026-01-13T10:00:00.123Z",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "4111111111111111",
        "session_key": "agent:main:main",
        "producer": {"id": "host-1", "epoch": 3, "seq": 1380013800},
        "input": {
            "size_bytes": 120,
            "hash": "hmac-sha256:t1:" + "a1" * 32,
            "summary": '{"command":"x ‹redacted:password:0123456789abcdef›"}',
            "redaction_applied": True,
            "redactions": {"password": 1, "token": 2},
        },
        "facts": {
            "secret_kinds": ["password", "api_key"],
            "fingerprints": ["0123456789abcdef"],
            "commands": [{"argv0": "x", "flags": ["--password"]}],
        },
        "usage": {"input_tokens": 123456, "output_tokens": 4096},
        "native": {"permission_mode": "default"},
    } | more


class TestScrub:
    def test_a_clean_event_comes_back_as_it_is(self, capture: Capture) -> None:
        clean = event()
        done, n = capture.scrub(clean)
        assert done is clean
        assert n == 0

    @pytest.mark.parametrize(
        "place",
        [
            {"native": {"x": f"leak {AWS_ID}"}},
            {"native": {"x": {"y": [f"Authorization: Bearer {BEARER}"]}}},
            {"error": {"message_summary": f"first\nDB_PASSWORD=hunter2-{BEARER}\nlast"}},
            {"labels": {SLACK: "x"}},
            {"session_id": ANTHROPIC},
            {"native": {"x": f'{{"password": "hunter2-{BEARER}"}}'}},
        ],
    )
    def test_a_secret_left_anywhere_goes(self, place: dict[str, Any], capture: Capture) -> None:
        done, n = capture.scrub(event(**place))
        assert n == 1
        out = orjson.dumps(done).decode()
        for secret in (AWS_ID, BEARER, SLACK, ANTHROPIC):
            assert secret not in out
        untouched = event(**place)
        for key in (
            "event_id",
            "span_id",
            "trace_id",
            "timestamp",
            "input",
            "facts",
            "usage",
            "producer",
            "session_key",
        ):
            assert done[key] == untouched[key]
        assert capture.scrub(done)[1] == 0

    def test_raw_content_that_was_asked_for_stays(self, pack: RulePack) -> None:
        raw = at_level(pack, CaptureLevel.FULL_RAW)
        given_ = event(input={"summary": f"key {AWS_ID}"}, native={"x": AWS_ID})
        done, n = raw.scrub(given_)
        assert done["input"]["summary"] == f"key {AWS_ID}"
        assert AWS_ID not in done["native"]["x"]
        assert n == 2

    def test_an_event_that_cannot_be_written_is_still_scrubbed(self, capture: Capture) -> None:
        done, n = capture.scrub({"x": "\ud800", "y": AWS_ID, 3: "z"})
        assert n == 1
        assert AWS_ID not in str(done)


def test_one_search_serves_content_and_facts(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    examine = capture.redactor.examine
    monkeypatch.setattr(capture.redactor, "examine", lambda v: calls.append(1) or examine(v))
    value = {"command": "echo password=hunter2"}
    capture.content(value, direction="input")
    capture.facts("shell", "Bash", value, None)
    assert len(calls) == 1


def test_an_input_that_comes_again_costs_no_search(pack: RulePack, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Capture(CaptureSettings(hash_key=KEY, key_id="t1"), pack)

    def reading(token: str) -> tuple[Any, ...]:
        value = {"command": f"cat notes password={token}", "description": "say it"}
        facts = capture.facts("shell", "Bash", value, "/w")
        return capture.content(value, direction="input"), facts, capture.native({"cwd": "/w"})

    first, other = reading("hunter2"), reading("hunter3")
    assert first != other
    searches = []
    scan = capture.redactor._scanner.scan
    monkeypatch.setattr(capture.redactor._scanner, "scan", lambda text: searches.append(text) or scan(text))
    assert reading("hunter2") == first
    assert searches == []
    again = {"command": "cat notes password=hunter2", "description": "say it"}
    assert capture.facts("shell", "Bash", again, "/v") != first[1], "the folder counts"


def test_what_is_remembered_is_bounded(pack: RulePack) -> None:
    capture = Capture(CaptureSettings(hash_key=KEY, key_id="t1"), pack)
    for n in range(1200):
        capture.facts("shell", "Bash", {"command": f"cat a{n} b{n} c{n} d{n} e{n} f{n} g{n} h{n}"}, "/w")
    assert len(capture._recent) <= 512
    assert 4096 <= len(capture._clean) <= 8192


def test_a_secret_behind_backslashes_of_a_text_and_one_beside_it_are_scrubbed(capture: Capture) -> None:
    for text in (f"C:\\dir\\x {AWS_ID}", f'{{"a": "x\\n{SLACK}\\n"}}', f"\x07{ANTHROPIC}", f"line\n{AWS_ID}"):
        done, n = capture.scrub({"event_id": "e", "native": {"path": "C:\\new", "x": text}, "y": ["\\", '","']})
        assert n == 1, text
        assert not any(secret in orjson.dumps(done).decode() for secret in (AWS_ID, SLACK, ANTHROPIC))


def test_threads_can_share_one_capture(capture: Capture) -> None:
    wrong: list[str] = []

    def work(n: int) -> None:
        for i in range(150):
            content = capture.content({"n": n, "i": i, "k": f"{SLACK} x"}, direction="input")
            if content.redactions != {"slack_token": 1} or f'"n":{n}' not in str(content.summary):
                wrong.append(str(content))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(alphabet=st.characters(), max_size=30),
        lambda s: (
            st.lists(s, max_size=4) | st.dictionaries(st.text(alphabet=st.characters(), max_size=10), s, max_size=4)
        ),
        max_leaves=15,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_json_can_hold_breaks_it(capture: Capture, value: Any) -> None:
    content = capture.content(value, direction="input")
    orjson.dumps(content.model_dump())
    orjson.dumps(capture.native(value))
    orjson.dumps(capture.facts("mcp", "tool", value, "/w").model_dump())
    orjson.dumps(capture.output_facts(value).model_dump())


def seconds(work: Any) -> float:
    best = 9e9
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def test_cost_grows_with_size_and_not_faster(capture: Capture) -> None:
    line = '2026-01-13T10:00:00Z INFO request served in 12 ms path=/api/v1/items/42 \\n user "x" %20 id=7\n'
    small, large = line * 200, line * 3200
    assert seconds(lambda: capture.redactor.text(large)) < 16 * 4 * max(
        seconds(lambda: capture.redactor.text(small)), 0.0005
    )


@pytest.mark.parametrize(
    "text",
    [
        "password=" * 60_000,
        "\\" * 400_000,
        "%41" * 150_000,
        "QUtJQUlPU0ZPRE5ON0VYQU1QTEU" * 15_000,
        "4" * 400_000,
        "41" * 200_000,
        "-----BEGIN RSA PRIVATE KEY-----" * 12_000,
        '{"a":' * 80_000,
        "eyJ" * 130_000,
        "a@b.cn " * 15_000,
        "://u:p@" * 60_000,
        "‹redacted:" * 30_000,
        "--token " * 30_000,
    ],
    ids=lambda t: t[:12],
)
def test_texts_made_to_be_slow_are_not(text: str, capture: Capture) -> None:
    plain = "the quick brown fox jumps over the lazy dog\n" * (len(text) // 44)
    base = max(seconds(lambda: capture.redactor.text(plain)), 0.002)
    start = time.process_time()
    capture.redactor.text(text)
    assert time.process_time() - start < 400 * base


@pytest.mark.parametrize("text", ["{} now", "pip install {}"])
@pytest.mark.parametrize("before", range(104, 128, 4))
def test_no_part_of_a_secret_is_left_where_the_bound_of_a_fact_cuts_it(
    capture: Capture, text: str, before: int
) -> None:
    word = "p" * before + "/" + AWS_ID
    facts = capture.facts("shell", "Bash", {"command": text.format(word)}, None)
    assert AWS_ID[:10].lower() not in repr(facts).lower()


@pytest.mark.parametrize("after", range(490, 512, 3))
def test_no_part_of_a_secret_is_left_at_the_start_of_a_path_that_is_cut(capture: Capture, after: int) -> None:
    path = f"/{'p' * 40}/{AWS_ID}/{'q' * after}"
    facts = capture.facts("shell", "Bash", {"command": f"cat {path}"}, None)
    assert AWS_ID[-10:].lower() not in repr(facts).lower()
