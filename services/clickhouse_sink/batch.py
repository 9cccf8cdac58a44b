"""A batch of records on their way: what is to be written, what is refused, which offsets may be committed then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokafka import ConsumerRecord, TopicPartition

from services.clickhouse_sink.records import fault, is_control


@dataclass(slots=True)
class Batch:
    """Grows by `add`. `offsets` is what to commit once all of it is stored: next offset by partition."""

    prefix: str
    rows: list[ConsumerRecord] = field(default_factory=list)
    faults: list[tuple[ConsumerRecord, str]] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    size_bytes: int = 0
    control: int = 0
    taken: int = 0

    def add(self, place: TopicPartition, records: Iterable[ConsumerRecord]) -> None:
        """Take records of one partition, in their order."""
        topic = place.topic.removeprefix(self.prefix)
        for record in records:
            self.taken += 1
            self.offsets[place] = record.offset + 1
            if is_control(record):
                self.control += 1
                continue
            why = fault(topic, record.value)
            if why is None:
                self.rows.append(record)
                self.size_bytes += len(record.value)
            else:
                self.faults.append((record, why))

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Leave out of the commit what others read now."""
        for place in places:
            self.offsets.pop(place, None)
