"""`agenttrace rules`: check rule files before a worker loads them."""

from __future__ import annotations

from pathlib import Path

import click

from schemas.errors import UserError


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
    from pipelines.sequence_rules.loader import check as check_rules

    problems = check_rules(files)
    warnings = [problem for problem in problems if ": warning: " in problem]
    for problem in problems:
        click.echo(problem, err=True)
    if len(warnings) < len(problems):
        raise UserError(
            f"{len(problems) - len(warnings)} mistakes; a worker would not start with these rules", exit_code=65
        )
    click.echo(f"{len(files)} files: right")
