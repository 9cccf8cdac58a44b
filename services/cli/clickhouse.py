"""`agenttrace migrate` and `query`: the tables, and SQL over them."""

from __future__ import annotations

import click
import orjson

from schemas.errors import UserError
from services.cli.main import load_config
from services.cli.running import clickhouse_dsn
from services.cli.text import safe


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be applied.")
def migrate(dry_run: bool) -> None:
    """Bring the ClickHouse tables to this version; what is applied already is left alone.

    \b
    Example:
      agenttrace migrate --dry-run
    """
    from services.clickhouse_sink.migrate import migrate_dsn, pending_dsn

    dsn = clickhouse_dsn(load_config().config)
    names = pending_dsn(dsn) if dry_run else migrate_dsn(dsn)
    for name in names:
        click.echo(f"{'would apply' if dry_run else 'applied'} {name}")
    if not names:
        click.echo("nothing to apply")


@click.command()
@click.argument("sql")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Rows shown at most.")
def query(sql: str, as_json: bool, limit: int) -> None:
    """Run SQL on ClickHouse and show the rows. docs/queries.md has SQL for the usual questions.

    \b
    Examples:
      agenttrace query "select agent_runtime, outcome, count() from tool_calls group by all"
      agenttrace query --json "select * from risk_findings"
    """
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError

    dsn = clickhouse_dsn(load_config().config)
    try:
        client = clickhouse_connect.get_client(dsn=dsn)
        result = client.query(sql)
    except (ClickHouseError, OSError) as error:
        raise UserError(f"ClickHouse: {_first_line(error)}", exit_code=65) from None
    rows = result.result_rows
    if as_json:
        for row in rows[:limit]:
            click.echo(orjson.dumps(dict(zip(result.column_names, row, strict=True)), default=str))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*map(escape, result.column_names), box=None, pad_edge=False, header_style="bold")
    for row in rows[:limit]:
        table.add_row(*(escape("" if value is None else safe(value)) for value in row))
    console = Console()
    console.print(table)
    if len(rows) > limit:
        console.print(f"… {len(rows) - limit} more rows; raise --limit or narrow the query")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:400] if text else type(error).__name__
