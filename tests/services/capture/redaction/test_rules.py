"""The shipped rule pack and the loader: every rule proves itself by its samples, and a broken rule says where it
is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.capture import redaction
from services.capture.redaction import Redactor, RuleError, RulePack
from services.capture.redaction.rules import Rule
from services.capture.redaction.scan import Scanner

pytestmark = pytest.mark.unit

RULES = RulePack.default().rules
# Kinds whose samples no scanner of pushes looks for.
UNSCANNED = ("database_password", "private_key", "password_hash")


@pytest.fixture(scope="module")
def scanner(pack: RulePack) -> Scanner:
    return Scanner(pack)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.spec.id)
def test_a_rule_matches_its_true_samples_behind_the_gate_and_no_false_one(rule: Rule, scanner: Scanner) -> None:
    index = RULES.index(rule)
    for sample in rule.spec.samples.true:
        text = sample.encode()
        assert index in scanner._gate.hits(text), f"the gate passes over {sample!r}"
        assert list(scanner._spans(rule, text, [])), f"no match in {sample!r}"
    for sample in rule.spec.samples.false:
        assert not list(scanner._spans(rule, sample.encode(), [])), f"false match in {sample!r}"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.spec.id)
def test_a_true_sample_is_found_anywhere_in_a_long_text(rule: Rule, scanner: Scanner) -> None:
    filler = b"nothing to see in this line\n" * 400
    for sample in rule.spec.samples.true:
        found = scanner.scan(filler + b"\n" + sample.encode() + b"\n" + filler)
        assert found, f"{sample!r} is lost between long texts"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.spec.id)
def test_redacting_a_true_sample_leaves_a_placeholder_and_settles(rule: Rule, redactor: Redactor) -> None:
    for sample in rule.spec.samples.true:
        once = redactor.text(sample)
        assert once.findings
        assert "‹redacted:" in once.text
        assert redactor.text(once.text).text == once.text


def test_the_pack_covers_the_kinds_the_product_promises(pack: RulePack) -> None:
    promised = (
        "aws_access_key aws_secret_key github_token gitlab_token slack_token openai_key anthropic_key"
        " google_api_key stripe_key jwt bearer_token private_key database_password url_password kubeconfig"
        " email phone national_id bank_card cookie"
    )
    assert set(promised.split()) <= pack.kinds
    assert len(pack.rules) >= 110


GOOD = """
rules:
  - id: widget-key
    kind: widget_key
    pattern: '\\b(wk_[a-f0-9]{8})\\b'
    samples: {true: ["key wk_0123abcd"], false: ["wk_short"]}
"""


def broken(change: tuple[str, str]) -> str:
    text = GOOD.replace(*change)
    assert text != GOOD
    return text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('samples: {true: ["key wk_0123abcd"], false: ["wk_short"]}', "rank: 2"), "has no samples"),
        (('false: ["wk_short"]', "false: []"), "has no samples"),
        (("[a-f0-9]{8}", "[a-f0-9]{8}(?=x)"), "RE2 refuses"),
        (("[a-f0-9]{8}", ".{8}"), "can match NUL"),
        (("[a-f0-9]{8}", r"\S{8}"), "can match NUL"),
        (("[a-f0-9]{8}", "[^x]{8}"), r"add \x00"),
        (("kind: widget_key", "kind: Widget-Key"), "kind"),
        (("kind: widget_key", "kind: widget_key\n    checksum: luhn"), "checksum"),
        (("kind: widget_key", "kind: widget_key\n    check: mod11"), "unknown check 'mod11'"),
        (("kind: widget_key", "kind: widget_key\n    judge: strict"), "needs two groups"),
        (("rules:", "rule:"), "list `rules`"),
        (("rules:", "ranks: 1\nrules:"), "unknown key 'ranks'"),
    ],
)
def test_a_broken_rule_is_refused_with_file_line_and_reason(change: tuple[str, str], message: str) -> None:
    with pytest.raises(RuleError) as caught:
        RulePack.parse([("widgets.yaml", broken(change))])
    assert message in str(caught.value)
    assert str(caught.value).startswith("widgets.yaml")
    if "rules`" not in message and "ranks" not in message:
        assert "widgets.yaml:3: rule widget-key" in str(caught.value)


def test_yaml_that_is_none_names_the_line() -> None:
    with pytest.raises(RuleError, match=r"widgets.yaml:\d+: not valid YAML"):
        RulePack.parse([("widgets.yaml", "rules:\n  - id: 'open\n")])


def test_an_id_used_twice_names_both_places() -> None:
    with pytest.raises(RuleError, match=r"two.yaml:3: rule id widget-key is already used in one.yaml"):
        RulePack.parse([("one.yaml", GOOD), ("two.yaml", GOOD)])


def test_rules_of_ones_own_are_loaded_from_files(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(GOOD, "utf-8")
    own = Redactor(b"k" * 16, RulePack.load([file]))
    assert own.text("a wk_0123abcd b").findings[0].kind == "widget_key"


def test_no_rule_file_holds_a_sample_in_one_piece(scanner: Scanner) -> None:
    # Provider formats in clear would stop pushes at secret scanners.
    folder = Path(redaction.__file__).parent / "rules"
    files = sorted(folder.glob("*.yaml"))
    assert files
    for file in files:
        raw = file.read_bytes()
        found = [raw[f.start : f.end] for f in scanner.scan(raw) if f.rank >= 3 and f.kind not in UNSCANNED]
        assert not found, f"{file.name}: {found} in one piece; split it with ¦"
