"""`agenttrace completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      agenttrace completion bash >> ~/.bashrc
      agenttrace completion fish > ~/.config/fish/completions/agenttrace.fish
    """
    from services.cli.commands import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "agenttrace", "_AGENTTRACE_COMPLETE").source())
