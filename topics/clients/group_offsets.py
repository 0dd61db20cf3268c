"""Reads a consumer group's member count and sets its offsets, for operators."""

from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from topics.clients.client_factory import new_client
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import Topic
from topics.settings import KafkaSettings

_REQUEST_TIMEOUT_S = 15.0


class GroupOffsets:
    """Administers one group. Every method raises KafkaUnavailableError."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        """Connect lazily. `group` holds no prefix."""
        self._prefix = settings.topic_prefix
        self._group = self._prefix + group
        self._client = new_client(AdminClient, settings.client_options())

    def member_count(self) -> int:
        """Return the group's number of members, dead ones included until their session ends."""
        try:
            found = self._client.describe_consumer_groups(
                [self._group], request_timeout=_REQUEST_TIMEOUT_S
            )
            return len(found[self._group].result(_REQUEST_TIMEOUT_S).members)
        except (KafkaException, TimeoutError) as error:
            raise KafkaUnavailableError(_reason(error)) from None

    def alter_offsets(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Set the group's committed offsets, by partition. It must have no member."""
        name = self._prefix + topic.name
        places = [TopicPartition(name, number, offset) for number, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._group, places)
        try:
            (answer,) = self._client.alter_consumer_group_offsets(
                [request], request_timeout=_REQUEST_TIMEOUT_S
            ).values()
            for place in answer.result(_REQUEST_TIMEOUT_S).topic_partitions:
                if place.error is not None:
                    raise KafkaUnavailableError(place.error.str(), topic=name)
        except (KafkaException, TimeoutError) as error:
            raise KafkaUnavailableError(_reason(error), topic=name) from None


def _reason(error: KafkaException | TimeoutError) -> str:
    """Describe both timeouts alike: the client's limit and ours are equal, either may be first."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_REQUEST_TIMEOUT_S:g} s"
    return str(error.args[0].str())
