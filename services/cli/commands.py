"""The commands of `agenttrace`, each imported when it is asked for."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

_COMMANDS = {
    "up": "services.cli.stack:up",
    "down": "services.cli.stack:down",
    "status": "services.cli.stack:status",
    "demo": "services.cli.demo:demo",
    "tail": "services.cli.tail:tail",
    "query": "services.cli.clickhouse:query",
    "replay": "services.cli.replay:replay",
    "migrate": "services.cli.clickhouse:migrate",
    "topics": "services.cli.topics:topics",
    "journal": "services.cli.journal:journal",
    "config": "services.cli.settings:config",
    "rules": "services.cli.rules:rules",
    "proxy": "services.cli.proxy:proxy",
    "normalise": "services.cli.normalise:normalise",
    "collector": "services.cli.run:collector",
    "worker": "services.cli.run:worker",
    "sink": "services.cli.run:sink",
    "completion": "services.cli.completion:completion",
}


class Lazy(click.Group):
    """A group of commands (name: `module:attribute`), each imported when it is asked for, so that --help stays quick."""

    def __init__(self, *args: Any, targets: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._targets = targets

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._targets.get(cmd_name)
        if target is None:
            return None
        module, name = target.split(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._targets and not args[0].startswith("-"):
            from services.yamlfile import nearest

            raise click.UsageError(f"no command '{args[0]}'{nearest(args[0], list(self._targets))}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Lazy,
    targets=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="agenttrace.yaml to use; else AGENTTRACE_CONFIG, else the one in AGENTTRACE_HOME.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to standard error.")
@click.version_option(package_name="agenttrace", prog_name="agenttrace")
def cli(config_file: Path | None, verbose: bool) -> None:
    """AgentTrace: what coding agents really did.

    \b
    Examples:
      agenttrace demo                          the whole on recorded sessions, on this machine
      agenttrace up                            broker, ClickHouse, collector, worker and sink; `agenttrace down` ends them
      agenttrace tail --outcome error          failed tool calls as they come
      agenttrace query "select * from tool_calls limit 5"
    """
    logging.basicConfig(
        level=logging.INFO if verbose or os.environ.get("AGENTTRACE_LOG") == "info" else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if not verbose:
        # Clients log at length what we tell in one line.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if config_file is not None:
        # The parts of a stack are processes of their own: the environment is how they learn of the file.
        os.environ["AGENTTRACE_CONFIG"] = str(config_file.absolute())
