"""Topics that a broker does not know yet: a creation takes a moment to reach every broker."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from topics.errors import KafkaUnavailableError

MISSING_TOPIC_S_MAX: Final = 30.0
"""How long a topic may be unknown."""

METADATA_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5


def is_missing_topic_error(message: Message) -> bool:
    """Whether a client's event says that a broker does not know the topic."""
    error = message.error()
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


class MissingTopicMonitor:
    """Asks for topics that are missing: the client then joins what it finds.

    By itself it would look again after minutes.
    """

    def __init__(self, consumer: Consumer, names: Sequence[str], *, is_told: bool) -> None:
        """`names` are whole, with the installation's prefix.

        `is_told` says whether the client's events tell of a missing topic. A member of the
        `consumer` protocol just gets no partitions: it looks from the start until all are there.
        """
        self._consumer = consumer
        self._names = tuple(names)
        self._since_s = None if is_told else time.monotonic()
        self._look_at_s = 0.0

    @property
    def is_any(self) -> bool:
        """Whether one was missing when it was last looked for."""
        return self._since_s is not None

    def check(self, messages: Iterable[Message]) -> None:
        """Notice what a client's events tell, and look at times until all topics are there.

        Raises KafkaUnavailableError after MISSING_S_MAX.
        """
        if self._since_s is None and any(map(is_missing_topic_error, messages)):
            self._since_s = time.monotonic()
        if self._since_s is not None and time.monotonic() >= self._look_at_s:
            self._look(self._since_s)

    def _look(self, since_s: float) -> None:
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S
        try:
            known = self._consumer.list_topics(timeout=METADATA_TIMEOUT_S).topics
        except KafkaException:
            return  # the broker is away, and it alone can tell
        missing = [name for name in self._names if name not in known]
        if not missing:
            self._since_s = None
        elif time.monotonic() - since_s > MISSING_TOPIC_S_MAX:
            raise KafkaUnavailableError(f"there is no topic {missing[0]}")
