"""Entry point of `agenttrace`: finds the command, and turns errors meant for people into one line and an exit code.

It imports next to nothing by itself: MCP clients wait for `agenttrace proxy stdio`, which needs none of the rest.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from services.config import Loaded


def load_config() -> Loaded:
    """The configuration for this call, its warnings told on standard error. Raises UserError."""
    import click

    from services import config as configuration

    loaded = configuration.load()
    for warning in loaded.warnings:
        click.echo(f"agenttrace: warning: {warning}", err=True)
    return loaded


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:3] == ["proxy", "stdio"]:
        from services.mcp_proxy.stdio import launch

        if (options := launch.parse(sys.argv[3:])) is not None:
            launch.run(options)
    import click

    from schemas.errors import UserError
    from services.cli.commands import cli

    try:
        code = cli.main(prog_name="agenttrace", standalone_mode=False)
    except UserError as error:
        click.echo(f"agenttrace: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
