"""Rule files: the documented examples load as they stand, and every mistake is one line that says what and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.sequence_rules.compiled import compile_pack
from pipelines.sequence_rules.loader import SHIPPED, check, load_rules
from pipelines.sequence_rules.samples import run_samples
from schemas.errors import UserError
from schemas.rules import DEFAULT_COOLDOWN_MS

pytestmark = pytest.mark.unit

DESIGN_EXAMPLE = Path(__file__).with_name("design_example.yaml").read_text(encoding="utf-8")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def one_rule(body: str) -> str:
    return "rules:\n  - id: r\n    name: n\n    severity: high\n" + body


def test_the_design_example_loads_as_it_stands(tmp_path: Path) -> None:
    pack = load_rules([written(tmp_path, DESIGN_EXAMPLE)])
    first, second = pack.rules
    assert first.when.sequence is not None and first.when.sequence[1].within == 60_000
    assert (first.cooldown, first.group_by, first.version) == (DEFAULT_COOLDOWN_MS, ["root_session_id"], 1)
    assert second.when.metric is not None and second.when.metric.threshold() == (">", 0.3)
    compile_pack(pack)


def test_a_rule_without_samples_is_a_warning(tmp_path: Path) -> None:
    problems = check([written(tmp_path, DESIGN_EXAMPLE)])
    assert len(problems) == 2
    assert all("warning" in problem for problem in problems)


def test_the_shipped_pack_keeps_its_promises() -> None:
    pack = load_rules()
    assert {rule.id for rule in pack.rules} >= {
        "secret-read-then-egress",
        "sensitive-path-read",
        "destructive-shell",
        "pipe-to-shell",
        "secret-in-arguments",
        "tool-loop",
        "mcp-server-error-spike",
    }
    assert check([SHIPPED]) == []
    for rule in pack.rules:
        assert rule.samples is not None and rule.samples.positive and rule.samples.negative, rule.id
        assert rule.description and rule.tags and rule.falsepositives, rule.id


def test_samples_that_break_their_promise_are_problems() -> None:
    (rule,) = [rule for rule in load_rules().rules if rule.id == "pipe-to-shell"]
    assert rule.samples is not None
    turned = rule.samples.model_copy(update={"positive": rule.samples.negative, "negative": rule.samples.positive})
    problems = run_samples(rule.model_copy(update={"samples": turned}))
    assert len(problems) == len(turned.positive) + len(turned.negative)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("{event: tool.call.stated}", "no event 'tool.call.stated'"),
        ("{event: tool.call.started, tool_source: astral}", "tool_source"),
        ("{event: tool.call.started, at: soon}", "'soon' is no duration"),
        ("{event: tool.call.started, repeat: 0}", "repeat is not"),
        ("{event: tool.call.started, tool_nmae: x}", "tool_nmae"),
    ],
)
def test_a_sample_that_is_no_event_is_a_problem(tmp_path: Path, sample: str, said: str) -> None:
    text = one_rule(
        "    when: {sequence: [{event: tool.call.started}]}\n"
        f"    samples:\n      positive: [{sample}]\n      negative: [{{event: session.started}}]\n"
    )
    (problem,) = check([written(tmp_path, text)])
    assert said in problem and "positive sample 1" in problem


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    pack = load_rules([written(tmp_path, DESIGN_EXAMPLE)])
    again = written(tmp_path, DESIGN_EXAMPLE.replace('"60s"', "1m").replace("rules:\n", "# a comment\nrules:\n", 1))
    assert load_rules([again]).hash == pack.hash
    other = written(tmp_path, DESIGN_EXAMPLE.replace('"60s"', '"61s"'))
    assert load_rules([other]).hash != pack.hash
    assert pack.model_copy(update={"rules": pack.rules[::-1]}).hash == pack.hash


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("rules: [", 1, "no valid YAML"),
        ("", 1, "should be an object"),
        ("rulez: []", 1, "unknown key 'rulez'; did you mean rules?"),
        (one_rule("    severty: low\n    when: {sequence: [{event: session.started}]}\n"), 5, "did you mean severity?"),
        (
            one_rule("    when:\n      sequence:\n        - {event: session.started, wher: {}}\n"),
            7,
            "did you mean where?",
        ),
        (
            one_rule("    when:\n      sequence:\n        - event: tool.call.stated\n"),
            7,
            "did you mean tool.call.started?",
        ),
        (one_rule("    when:\n      sequence:\n        - event: risk.finding.created\n"), 7, "not among the events"),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n          where:\n"
                "            tool_nmae: x\n"
            ),
            9,
            "rule r: tool.call.started has no field 'tool_nmae'; did you mean tool_name?",
        ),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n          where:\n"
                "            - tool_name: x\n            - facts.comands.argv0: x\n"
            ),
            10,
            "did you mean commands?",
        ),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n          where:\n"
                "            tool_name.regex: (?<=a)b\n"
            ),
            9,
            "rule r: regex '(?<=a)b' is no RE2 expression: invalid perl operator: (?<",
        ),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n          where:\n"
                "            tool_name.regx: a\n"
            ),
            9,
            "did you mean regex?",
        ),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n          where:\n"
                "            duration_ms.gt: many\n"
            ),
            9,
            "takes a number",
        ),
        (
            one_rule(
                "    when:\n      sequence:\n        - event: tool.call.started\n        - event: tool.call.started\n"
            ),
            5,
            "step 2 needs within",
        ),
        (one_rule("    when: {}\n"), 5, "exactly one of sequence, count, metric"),
        (
            one_rule("    cooldown: 10s\n    when: {sequence: [{event: session.started}]}\n"),
            5,
            "cooldown is below 60 s",
        ),
        (
            one_rule("    cooldown: soon\n    when: {sequence: [{event: session.started}]}\n"),
            5,
            "'soon' is no duration",
        ),
        (
            one_rule(
                "    when:\n      metric: {name: agent_tool_call_error_rate, group_by: [mcp.server], window: 5m,"
                " condition: '> 0.3'}\n"
            ),
            6,
            "did you mean server_name?",
        ),
        (
            one_rule(
                "    when:\n      metric: {name: x, group_by: [mcp.server_name], window: 5m, condition: 'high'}\n"
            ),
            6,
            "agent_tool_call_error_rate",
        ),
    ],
)
def test_mistakes_name_file_line_and_cure(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_rules([path])
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert said in message
    assert "\n" not in message


def test_the_first_mistake_says_how_many_follow(tmp_path: Path) -> None:
    text = one_rule("    severty: low\n    nam: x\n    when: {sequence: [{event: session.started}]}\n")
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=r"\(and 1 more\)$"):
        load_rules([path])
    assert [problem.split(":")[1] for problem in check([path])] == ["5", "6"]


def test_ids_are_unique_over_all_files(tmp_path: Path) -> None:
    text = one_rule("    when: {sequence: [{event: session.started}]}\n")
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yml").write_text(text)
    (tmp_path / "c.txt").write_text("no rules")
    with pytest.raises(UserError, match=r"rule r is also at .*a\.yaml:2"):
        load_rules([tmp_path])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml: cannot be read: No such file"):
        load_rules([tmp_path / "none.yaml"])
