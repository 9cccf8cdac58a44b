"""Apache Kafka itself, one node on the loopback: its published jars on a JVM that comes as a wheel."""

from services.embedded.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
