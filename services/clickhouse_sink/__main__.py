"""`python -m services.clickhouse_sink`: a sink in the foreground, settings from agenttrace.yaml and the environment."""

from __future__ import annotations

import logging
import os
import sys

from schemas.errors import UserError
from services import config as configuration
from services.clickhouse_sink.service import run
from services.clickhouse_sink.settings import from_config
from services.kafka import client_kwargs


def main() -> int:
    """Exit code: 0 after a signal, else that of the error, which is printed as one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = configuration.load().config
        dsn = config.clickhouse.dsn or config.sinks.database.dsn or os.environ.get("CLICKHOUSE_DSN")
        if not dsn:
            raise UserError("no ClickHouse to talk to: set clickhouse.dsn (AGENTTRACE_CLICKHOUSE__DSN)")
        run(from_config(config, client_kwargs(config.kafka), dsn))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
