"""`agenttrace config`: what is in force, and whether a file is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from services import config as configuration
from services.cli.main import load_config

_SECRET = ("password", "dsn", "key")


@click.group()
def config() -> None:
    """Show or check the configuration."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Print the configuration in force, secrets masked.

    \b
    Example:
      AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 agenttrace config show
    """
    loaded = load_config()
    data = {"agenttrace": _mask(loaded.config.model_dump(mode="json"))}
    if as_json:
        click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2))
        return
    import sys

    from ruamel.yaml import YAML

    click.echo(f"# from {loaded.source} and the environment; home {configuration.home()}")
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(data, sys.stdout)


@config.command()
@click.option(
    "--config", "--file", "file", type=click.Path(path_type=Path), help="The file to check; else the one in force."
)
def check(file: Path | None) -> None:
    """Check a file: unknown keys are named with the nearest valid one, file and line.

    \b
    Example:
      agenttrace config check --config agenttrace.yaml
    """
    loaded = configuration.load(file) if file else load_config()
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{loaded.source}: right")


def _mask(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _mask(item, key) for key, item in value.items()}
    if value is not None and any(word in name for word in _SECRET) and not name.startswith("ssl"):
        return "‹masked›"
    return value
