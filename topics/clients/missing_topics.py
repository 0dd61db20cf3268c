"""Detects topics that the broker does not know, for example just after their creation."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from topics.errors import KafkaUnavailableError

MISSING_TOPIC_S_MAX: Final = 30.0
"""How long a topic may be unknown."""

METADATA_TIMEOUT_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 0.5

ABSENT_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)
"""Error codes of a topic that does not exist, and of one that the client may not describe."""


def is_missing_topic_error(message: Message) -> bool:
    """Whether a client's event reports an unknown topic."""
    error = message.error()
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


class MissingTopicMonitor:
    """Requests metadata until all topics exist, so that the client subscribes to new ones at once.

    The client itself refreshes its metadata only after minutes. Each topic is asked for by its
    name, since a shared cluster may have ten thousand others. Under the `classic` protocol the
    client compares its subscription with the metadata, and joins again, only when it lists all
    topics of the cluster: it does so once all of its own exist.
    """

    def __init__(self, consumer: Consumer, names: Sequence[str], *, has_error_events: bool) -> None:
        """`names` include the installation's prefix.

        `has_error_events`: whether the client reports unknown topics as events. A member of the
        `consumer` protocol does not: it is checked from the start until all topics exist.
        """
        self._consumer = consumer
        self._names = tuple(names)
        self._has_error_events = has_error_events
        self._missing_since_s = None if has_error_events else time.monotonic()
        self._check_at_s = 0.0

    def check(self, messages: Iterable[Message]) -> None:
        """Read a poll's error events, and check the metadata while a topic is missing.

        Raises KafkaUnavailableError after MISSING_TOPIC_S_MAX.
        """
        if self._missing_since_s is None and any(map(is_missing_topic_error, messages)):
            self._missing_since_s = time.monotonic()
        if self._missing_since_s is not None and time.monotonic() >= self._check_at_s:
            self._check_metadata(self._missing_since_s)

    def _check_metadata(self, since_s: float) -> None:
        self._check_at_s = time.monotonic() + _CHECK_INTERVAL_S
        try:
            missing = self._missing_names()
        except KafkaException:
            return  # the broker does not answer, so the topics are not known to be missing
        if not missing:
            self._missing_since_s = None
        elif time.monotonic() - since_s > MISSING_TOPIC_S_MAX:
            raise KafkaUnavailableError(
                f"topic {missing[0]} does not exist, or this client may not describe it"
            )

    def _missing_names(self) -> list[str]:
        """Raises KafkaException."""
        missing = [name for name in self._names if not self._exists(name)]
        if missing or not self._has_error_events:
            return missing
        # Another broker may answer this one, which does not know the topics yet.
        known = self._consumer.list_topics(timeout=METADATA_TIMEOUT_S).topics
        return [name for name in self._names if name not in known]

    def _exists(self, name: str) -> bool:
        """Raises KafkaException."""
        error = self._consumer.list_topics(name, timeout=METADATA_TIMEOUT_S).topics[name].error
        return error is None or error.code() not in ABSENT_TOPIC
