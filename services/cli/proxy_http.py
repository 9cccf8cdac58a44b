"""`agenttrace proxy http`: MCP over HTTP through the proxy."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--listen", default="127.0.0.1:8790", show_default=True, metavar="HOST:PORT", help="Where clients reach the proxy."
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    required=True,
    metavar="NAME=URL",
    help="An MCP server: /mcp/NAME leads to URL. May be given many times.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM file of authorities to trust besides the system's.",
)
@click.option("--allow-remote", is_flag=True, help="Let --listen be an address that other machines can reach.")
@click.option("--sink", metavar="jsonl:FILE", help="Write the events to this file, with no collector.")
@click.option(
    "--timeout-ms", type=click.IntRange(min=1), help="Report a request that is open for longer. It is not broken off."
)
def http(
    *,
    listen: str,
    routes: tuple[str, ...],
    ca: Path | None,
    allow_remote: bool,
    sink: str | None,
    timeout_ms: int | None,
) -> None:
    """Relay MCP over HTTP to upstreams and observe a copy of it.

    The URL of a server in the client's configuration becomes http://127.0.0.1:8790/mcp/NAME; what the client sends,
    its Authorization too, passes as it is.

    \b
    Examples:
      agenttrace proxy http --route github=https://api.githubcopilot.com/mcp/
      agenttrace proxy http --route local=http://127.0.0.1:8000/mcp --sink jsonl:events.jsonl
    """
    from services.mcp_proxy.http.routes import parse_route
    from services.mcp_proxy.http.server import HttpSettings, run

    observer = (*(("--sink", sink) if sink else ()), *(("--timeout-ms", str(timeout_ms)) if timeout_ms else ()))
    settings = HttpSettings(listen, [parse_route(route) for route in routes], ca, allow_remote, observer)

    def ready(address: str) -> None:
        for route in settings.routes:
            click.echo(f"http://{address}/mcp/{route.name} -> {route.url}")

    run(settings, ready)
