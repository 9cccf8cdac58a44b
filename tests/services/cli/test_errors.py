"""What goes wrong is told in one line with an exit code, whichever command meets it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.config import KafkaConfig
from schemas.topics import RISK_FINDING
from services.embedded.kafka import KafkaBroker
from services.kafka import client_kwargs, create_topics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def agenttrace(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENTTRACE_", "KAFKA_", "CLICKHOUSE_"))
    }
    command = [sys.executable, "-m", "services.cli.main", *words]
    return subprocess.run(
        command,
        env={**clean, "AGENTTRACE_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[3],
    )


def one_line(done: subprocess.CompletedProcess[str], *told: str, code: int | None = None) -> None:
    """The whole of standard error is one line of ours that tells this, and the exit code says failure."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("agenttrace: ")
    for text in told:
        assert text in lines[0]
    assert done.returncode == code if code is not None else done.returncode != 0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of this module's own, with a second listener that wants a login."""
    with KafkaBroker(tmp_path_factory.mktemp("guarded"), sasl_users={"alice": "right-password"}) as broker:
        kwargs = client_kwargs(KafkaConfig(bootstrap_servers=broker.bootstrap))
        asyncio.run(create_topics(kwargs, partitions=1))
        yield broker


def login(broker: KafkaBroker, password: str) -> dict[str, str]:
    return {
        "AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": broker.sasl_bootstrap,
        "AGENTTRACE_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "AGENTTRACE_KAFKA__SASL_USERNAME": "alice",
        "AGENTTRACE_KAFKA__SASL_PASSWORD": password,
        "AGENTTRACE_COLLECTOR__PORT": "0",
        "AGENTTRACE_PIPELINES__PORT": "0",
        "AGENTTRACE_SINK__PORT": "0",
    }


def test_a_wrong_key_is_named_with_the_nearest_one_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "agenttrace.yaml"
    file.write_text("agenttrace:\n  kafka:\n    bootstrap_serverz: a:1\n")
    done = agenttrace(tmp_path, "config", "check", "--file", str(file))
    one_line(done, f"{file}:3", "unknown key 'kafka.bootstrap_serverz'", "did you mean 'bootstrap_servers'?", code=78)
    assert agenttrace(tmp_path, "--config", str(file), "up").returncode == 78


def test_a_right_file_is_right(tmp_path: Path) -> None:
    file = tmp_path / "agenttrace.yaml"
    file.write_text("agenttrace:\n  kafka:\n    bootstrap_servers: a:1\n")
    done = agenttrace(tmp_path, "config", "check", "--config", str(file))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = {"AGENTTRACE_COLLECTOR__SINKS": "jsonl", "AGENTTRACE_COLLECTOR__PORT": port}
        one_line(agenttrace(tmp_path, "collector", **env), f"port {port}", "in use", code=69)
        one_line(agenttrace(tmp_path, "up", AGENTTRACE_COLLECTOR__PORT=port), f"port {port}", "in use", code=69)


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    env = {"AGENTTRACE_COLLECTOR__SINKS": "jsonl", "AGENTTRACE_COLLECTOR__PORT": "0"}
    for words in (["collector"], ["up"]):
        one_line(agenttrace(home, *words, **env), str(tmp_path / "file"), code=73)


def test_a_relative_home(tmp_path: Path) -> None:
    done = agenttrace(tmp_path, "status", AGENTTRACE_HOME="here")
    one_line(done, "AGENTTRACE_HOME must be an absolute path")


@pytest.mark.parametrize("words", [["topics", "create"], ["topics", "list"], ["collector"], ["worker"], ["tail"]])
def test_kafka_refuses_the_login(tmp_path: Path, guarded: KafkaBroker, words: list[str]) -> None:
    done = agenttrace(tmp_path, *words, **login(guarded, "wrong-password"))
    one_line(done, "refused the login", "kafka.sasl_username", code=77)
    assert "wrong-password" not in done.stderr


def test_the_sink_is_refused_too(tmp_path: Path, guarded: KafkaBroker, clickhouse_db: str) -> None:
    from services.clickhouse_sink.migrate import migrate_dsn

    migrate_dsn(clickhouse_db)
    env = {**login(guarded, "wrong-password"), "AGENTTRACE_CLICKHOUSE__DSN": clickhouse_db}
    one_line(agenttrace(tmp_path, "sink", **env), "refused the login", code=77)


def test_the_right_login_is_taken(tmp_path: Path, guarded: KafkaBroker) -> None:
    done = agenttrace(tmp_path, "topics", "list", **login(guarded, "right-password"))
    assert done.returncode == 0, done.stderr


def test_nothing_answers_at_the_address(tmp_path: Path) -> None:
    env = {"AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    one_line(agenttrace(tmp_path, "topics", "list", **env), "127.0.0.1:1", "cannot be reached", code=69)
    one_line(agenttrace(tmp_path, "topics", "list"), "agenttrace up", code=78)
    one_line(agenttrace(tmp_path, "query", "select 1"), "agenttrace up", code=78)


RULE = """rules:
  - id: odd
    name: odd
    severity: high
    when:
      sequence:
        - event: tool.call.started
          where:
            tool_name.regex: "(unclosed"
    action: [alert]
"""


def test_a_rule_with_a_bad_regex(tmp_path: Path, guarded: KafkaBroker) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULE)
    done = agenttrace(tmp_path, "rules", "check", str(file))
    assert done.returncode == 65
    assert f"{file}:9" in done.stderr and "odd" in done.stderr and "missing )" in done.stderr
    env = {"AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": guarded.bootstrap, "AGENTTRACE_PIPELINES__RULES": str(file)}
    one_line(agenttrace(tmp_path, "worker", **env), f"{file}:9", "odd")


def test_a_finding_topic_is_missing(tmp_path: Path, guarded: KafkaBroker) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    kwargs = client_kwargs(KafkaConfig(bootstrap_servers=guarded.bootstrap))

    async def with_topic(present: bool) -> None:
        admin = AIOKafkaAdminClient(**kwargs)
        await admin.start()
        try:
            if present:
                await create_topics(kwargs, partitions=1)
            else:
                await admin.delete_topics([RISK_FINDING])
        finally:
            await admin.close()

    asyncio.run(with_topic(False))
    env = {"AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": guarded.bootstrap, "AGENTTRACE_PIPELINES__PORT": "0"}
    one_line(agenttrace(tmp_path, "worker", **env), RISK_FINDING, "agenttrace topics create")
    done = agenttrace(tmp_path, "topics", "list", **env)
    assert done.returncode == 69 and "missing" in done.stdout
    asyncio.run(with_topic(True))


def test_an_unknown_command_names_the_nearest(tmp_path: Path) -> None:
    done = agenttrace(tmp_path, "statsu")
    assert done.returncode == 2 and "did you mean 'status'?" in done.stderr


def test_every_command_has_help_with_an_example(tmp_path: Path) -> None:
    from services.cli.commands import cli

    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        subs = getattr(command, "commands", {"": command})
        for sub in subs.values():
            assert sub.help and "Example" in sub.help, f"{name} {sub.name}"
