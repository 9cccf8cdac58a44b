"""The configuration: the published examples load, and errors name file, line and the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import UserError
from schemas.policy import PolicyFile
from services import config, yamlfile

pytestmark = pytest.mark.unit

SEED = Path(__file__).parent.parent / "fixtures" / "seed"


def load(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> config.Loaded:
    file = tmp_path / "agenttrace.yaml"
    file.write_text(text)
    return config.load(file, env or {})


def test_the_published_configuration_loads_as_it_stands() -> None:
    loaded = config.load(SEED / "config.yaml", {"AGENTTRACE_DB_DSN": "http://u:p@h:8123/d"})
    assert loaded.config.runtime.adapter == "openclaw-plugin"
    assert loaded.config.sinks.database.dsn == "http://u:p@h:8123/d"
    assert loaded.config.reliability.pending_call_ttl_ms == 300_000
    assert loaded.warnings == ()


def test_a_variable_that_is_not_set_is_a_warning_not_an_error() -> None:
    loaded = config.load(SEED / "config.yaml", {})
    assert loaded.config.sinks.database.dsn is None
    assert "AGENTTRACE_DB_DSN" in loaded.warnings[0]


def test_the_published_policies_load_as_they_stand() -> None:
    document = yamlfile.read(SEED / "policies.yaml")
    policies = yamlfile.check(PolicyFile, yamlfile.plain(document), source="policies.yaml", document=document)
    assert [policy.decision for policy in policies.policies] == ["ask", "ask", "deny"]


def test_no_file_is_needed(tmp_path: Path) -> None:
    loaded = config.load(None, {"AGENTTRACE_HOME": str(tmp_path)})
    assert loaded.source == "defaults"
    assert loaded.config.collector.port == 8722


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agenttrace:\n  collectr:\n    port: 1\n", ":2: unknown key 'collectr'; did you mean 'collector'?"),
        (
            "agenttrace:\n  kafka:\n    bootstrap_server: a\n",
            ":3: unknown key 'kafka.bootstrap_server'; did you mean 'bootstrap_servers'?",
        ),
        ("agenttrace:\n  enabled: true\n  collector:\n    port: 99999\n", ":4: collector.port:"),
        ("collector:\n  port: 1\n", ":1: unknown key 'collector'; it belongs below the top key 'agenttrace'"),
        ("agenttrac:\n  enabled: true\n", ":1: unknown key 'agenttrac'; did you mean 'agenttrace'?"),
        ("agenttrace:\n  a: [1\n", ":3: not valid YAML"),
        ("- 1\n", "must be a mapping"),
    ],
)
def test_errors_name_file_line_and_nearest_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "agenttrace.yaml"))
    assert told in str(error.value)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    env = {"AGENTTRACE_COLLECTOR__PORT": "1234", "AGENTTRACE_COLLECTOR__SINKS": "kafka,jsonl"}
    loaded = load(tmp_path, "agenttrace:\n  collector:\n    port: 1\n", env)
    assert loaded.config.collector.port == 1234
    assert loaded.config.collector.sinks == ("kafka", "jsonl")


def test_an_unknown_variable_is_named_with_the_nearest_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="AGENTTRACE_KAFKA__BOOTSTRAP_SERVRS.*did you mean 'bootstrap_servers'"):
        config.load(None, {"AGENTTRACE_HOME": str(tmp_path), "AGENTTRACE_KAFKA__BOOTSTRAP_SERVRS": "a:1"})
