"""`agenttrace rules`: check rule files before a worker loads them."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def rules() -> None:
    """Work with detection rules."""


@rules.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(files: tuple[Path, ...]) -> None:
    """Load rule files, run their samples, and say what is wrong with file and line.

    \b
    Example:
      agenttrace rules check my-rules.yaml
    """
    from pipelines.sequence_rules import check as check_rules

    for warning in check_rules(list(files)):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{len(files)} files: right")
