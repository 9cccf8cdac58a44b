"""Kafka and ClickHouse on one machine without Docker: the launchers of `agenttrace up`, the demo and the tests."""
