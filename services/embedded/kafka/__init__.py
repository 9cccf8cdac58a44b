"""Apache Kafka itself on the loopback, one node or a cluster: its published jars on a JVM that comes as a wheel."""

from services.embedded.kafka.broker import KafkaBroker
from services.embedded.kafka.cluster import KafkaCluster

__all__ = ["KafkaBroker", "KafkaCluster"]
