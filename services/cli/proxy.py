"""`agenttrace proxy`: MCP traffic passes as it came, and what was said is recorded."""

from __future__ import annotations

import click

from services.cli.commands import Lazy

_COMMANDS = {
    "stdio": "services.cli.proxy:stdio",
    "http": "services.cli.proxy_http:http",
    "wrap": "services.cli.proxy_wrap:wrap",
    "tail": "services.cli.proxy_tail:tail",
}


@click.group(cls=Lazy, targets=_COMMANDS)
def proxy() -> None:
    """Stand between an MCP client and its servers, passing every byte as it came.

    \b
    Examples:
      agenttrace proxy stdio --server files -- npx -y @modelcontextprotocol/server-filesystem .
      agenttrace proxy http --route github=https://api.githubcopilot.com/mcp/
      agenttrace proxy wrap ~/.claude.json     every server of a client's configuration; --undo restores it
      agenttrace proxy tail                    calls as they pass
    """


def _sink(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from services.mcp_proxy.stdio.launch import is_sink

    if value is not None and not is_sink(value):
        raise click.BadParameter("only jsonl:FILE is possible", ctx, parameter)
    return value


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--server", required=True, metavar="NAME", help="What the server is called in events.")
@click.option(
    "--sink",
    metavar="jsonl:FILE",
    callback=_sink,
    help="Write events to this file instead of sending them to the collector.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=1),
    help="Report requests that are open for longer; nothing is cut off.",
)
@click.option("--real-command", metavar="CMD", help="The server's program, where no words can follow --.")
@click.option("--real-args", metavar="A,B", help="Its arguments, commas between them.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND ARGS…")
def stdio(
    *,
    server: str,
    sink: str | None,
    timeout_ms: int | None,
    real_command: str | None,
    real_args: str | None,
    command: tuple[str, ...],
) -> None:
    """Run an MCP server of standard input and output, and record what is said.

    Every byte passes as it came. The exit code, or the signal that ended it, is the server's. Signals to the proxy go to
    the server. When the client closes standard input, dies, or signals the end, the server has 3 seconds, then it and
    every process it started are ended.

    \b
    Examples:
      agenttrace proxy stdio --server files -- npx -y @modelcontextprotocol/server-filesystem .
      agenttrace proxy stdio --server git --real-command uvx --real-args mcp-server-git,--repository,.
      agenttrace proxy stdio --server git --sink jsonl:events.jsonl -- uvx mcp-server-git
    """
    from services.mcp_proxy.stdio import launch

    if real_command is not None and command:
        raise click.UsageError("give the server's command either after -- or by --real-command, not both")
    if real_command is None and real_args is not None:
        raise click.UsageError("--real-args needs --real-command")
    if not server:
        raise click.UsageError("--server must not be empty")
    words = (real_command, *launch.split_arguments(real_args or "")) if real_command is not None else command
    if not words or not words[0]:
        raise click.UsageError("no command to run: write it after --, as in `… --server files -- npx -y server-files`")
    launch.run(launch.Options(server, words, sink, timeout_ms))
