"""Differences between a topic on the broker and its declaration in the catalogue. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from topics.records.catalogue import Topic

AT_LEAST: Final = frozenset({"retention.ms", "max.message.bytes"})
"""Options of which a larger value than the catalogue's loses nothing."""

_MISSING: Final = "missing"

_UNLIMITED: Final = -1
"""Kafka's value for a retention without end."""


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """One difference, in words for an operator."""

    topic: str  # with the installation's prefix
    text: str
    loses_records: bool = False  # roles must not start on such a topic

    @property
    def is_missing(self) -> bool:
        """Whether the topic does not exist."""
        return self.text == _MISSING

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}"


def missing_topic(name: str) -> TopicDifference:
    """Return the difference of a topic that does not exist."""
    return TopicDifference(name, _MISSING, loses_records=True)


def partition_difference(name: str, count: int, topic: Topic) -> Iterator[TopicDifference]:
    """Compare the number of partitions: roles address partitions by number."""
    if count != topic.partition_count and not (topic.grows and count > topic.partition_count):
        text = f"{count} partitions, the catalogue says {topic.partition_count}"
        yield TopicDifference(name, text, loses_records=True)


def replica_difference(
    name: str, count: int, wanted: int, setting: str
) -> Iterator[TopicDifference]:
    """Compare the replication factor with the setting of that name."""
    if count != wanted:
        yield TopicDifference(name, f"replication factor {count}, {setting} is {wanted}")


def option_differences(
    name: str, actual: Mapping[str, str | None], wanted: Mapping[str, str]
) -> Iterator[TopicDifference]:
    """Compare the options that the catalogue sets; an old broker may lack one."""
    for option, value in wanted.items():
        found = actual.get(option)
        if _elements(found) != _elements(value):
            text = f"{option} is {found}, the catalogue says {value}"
            yield TopicDifference(name, text, loses_records=_loses_records(option, found, value))


def _loses_records(option: str, found: str | None, wanted: str) -> bool:
    if found is None:
        return False
    if option in AT_LEAST:
        return int(found) != _UNLIMITED and int(found) < int(wanted)
    if option == "cleanup.policy":  # deletion is bounded by the retention, compaction is not
        return "compact" in _elements(found) and "compact" not in _elements(wanted)
    return False


def _elements(value: str | None) -> list[str]:
    """Return the sorted elements: lists in a configuration have no order."""
    return sorted((value or "").split(","))
