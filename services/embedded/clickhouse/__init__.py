"""The real ClickHouse engine behind its own HTTP interface, in a process of this machine."""

from services.embedded.clickhouse.launcher import ClickHouseServer

__all__ = ["ClickHouseServer"]
