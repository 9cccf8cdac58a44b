"""Kafka and ClickHouse on one machine without Docker: the launchers behind `agenttrace up`, the demo and the
tests.
"""
