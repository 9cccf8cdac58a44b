"""`agenttrace topics`: the topic table against the broker."""

from __future__ import annotations

import asyncio

import click
import orjson

from schemas.topics import PARTITIONS
from services.cli.main import load_config
from services.cli.running import kafka_kwargs
from services.kafka import TopicState, create_topics, list_topics


@click.group()
def topics() -> None:
    """Create or list the Kafka topics."""


@topics.command()
@click.option("--partitions", type=click.IntRange(1, 1024), default=PARTITIONS, show_default=True)
@click.option(
    "--replication", type=click.IntRange(1, 10), default=1, show_default=True, help="Copies of each partition."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be created.")
def create(partitions: int, replication: int, dry_run: bool) -> None:
    """Create the topics that are missing; existing ones stay as they are.

    \b
    Examples:
      agenttrace topics create --partitions 12 --replication 3
      agenttrace topics create --dry-run
    """
    kwargs = kafka_kwargs(load_config().config)
    states = asyncio.run(create_topics(kwargs, partitions=partitions, replication=replication, dry_run=dry_run))
    for state in states:
        word = ("would create" if dry_run else "created") if state.created else "exists"
        click.echo(f"{word:12} {state.topic.name}")


@topics.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> None:
    """List every topic of the table with its partitions, key and events; missing ones are named.

    Exit code 69 when one is missing.

    \b
    Example:
      agenttrace topics list --json | jq -r '.[] | select(.partitions == 0) | .name'
    """
    states = asyncio.run(list_topics(kafka_kwargs(load_config().config)))
    if as_json:
        click.echo(orjson.dumps([_row(state) for state in states], option=orjson.OPT_INDENT_2))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("topic", "kind", "partitions", "key", "events", box=None, pad_edge=False)
        for state in states:
            found = str(state.partitions) if state.partitions else "[red]missing[/]"
            names = ", ".join(state.topic.events)
            table.add_row(state.topic.name, state.topic.kind, found, state.topic.key, names)
        Console().print(table)
    missing = [state.topic.name for state in states if not state.partitions]
    if missing:
        click.echo(f"agenttrace: {len(missing)} topics are missing; `agenttrace topics create` makes them", err=True)
        ctx.exit(69)


def _row(state: TopicState) -> dict[str, object]:
    topic = state.topic
    return {
        "name": topic.name,
        "kind": topic.kind,
        "partitions": state.partitions,
        "key": topic.key,
        "events": topic.events,
        "config": topic.config,
    }
