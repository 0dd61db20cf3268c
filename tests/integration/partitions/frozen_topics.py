"""Topics with a partition on the broker that a test freezes, and waiting for what that does."""

from functools import partial

from tests.integration.gpu_consumers.threaded_replica import POOL
from tests.integration.partitions.conftest import DEAD
from tests.support import until as waiting
from tests.support.two_brokers import TwoBrokers
from topics.metrics import PARTITION_UNREADABLE_SECONDS
from topics.records.catalogue import SHARED_TOPICS, Topic, pool_topics
from topics.settings import KafkaSettings

until = partial(waiting.until, timeout_s=90.0)
"""A client that asks the frozen broker first needs several seconds for one reading."""


def dead_partition(topic: Topic) -> int:
    """Return the number of the partition that is unavailable."""
    return min(DEAD, topic.partition_count - 1)


def create_topics(
    brokers: TwoBrokers, kafka: KafkaSettings, topic: Topic, pool: str = POOL
) -> None:
    """Create all topics; one partition of `topic` is on the broker that a test freezes."""
    topics = [*SHARED_TOPICS, *pool_topics(pool)]
    brokers.create_topics(kafka, topics, {topic.name: {dead_partition(topic)}})


def patient(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of a sender that a test relies on."""
    return kafka.model_copy(update={"delivery_timeout_s": 60.0})


def wait_unreadable(topic: Topic, seconds: float) -> None:
    """Wait until this process could not read the partition for that long."""
    gauge = PARTITION_UNREADABLE_SECONDS.labels(topic.name, str(dead_partition(topic)))
    until(lambda: gauge._value.get() >= seconds)


def wait_readable(topic: Topic) -> None:
    """Wait until this process can read the partition again."""
    gauge = PARTITION_UNREADABLE_SECONDS.labels(topic.name, str(dead_partition(topic)))
    until(lambda: gauge._value.get() == 0)
