"""Goal: single records are read by offset, and those that left the log are reported as absent."""

from contextlib import closing

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.clients.record_fetcher import GAP_MAX, RecordFetcher
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings

FETCH_S_MAX = 60.0


@pytest.fixture
def settings(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    """Return settings of a topic with 300 records in each of two partitions."""
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    TopicAdmin(settings).create([RESULTS])
    producer = RecordProducer(settings, client_id="test", linger_ms=1)
    for number in range(600):
        producer.send(RESULTS.name, b"%d" % (number // 2), partition=number % 2)
    producer.flush(30)
    producer.close()
    return settings


def test_records_are_read_by_offset_again_and_again(settings: KafkaSettings) -> None:
    wanted = {0: [3, 4, 5 + GAP_MAX, 299], 1: [0, 250]}
    with closing(RecordFetcher(settings, RESULTS, client_id="test")) as fetcher:
        for _ in range(2):
            found = fetcher.fetch(wanted, FETCH_S_MAX)
            assert set(found) == {
                (n, offset) for n, offsets in wanted.items() for offset in offsets
            }
            assert all(record.value == b"%d" % offset for (_, offset), record in found.items())


def test_deleted_records_are_absent(settings: KafkaSettings) -> None:
    with closing(RecordFetcher(settings, RESULTS, client_id="test")) as fetcher:
        admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
        name = settings.topic_prefix + RESULTS.name
        below = [TopicPartition(name, 0, 200), TopicPartition(name, 1, 300)]
        for deleted in admin.delete_records(below).values():
            deleted.result(FETCH_S_MAX)
        found = fetcher.fetch({0: [5, 210], 1: [7]}, FETCH_S_MAX)
        assert set(found) == {(0, 210)}


def test_an_unavailable_broker_is_reported_in_time() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with (
        closing(RecordFetcher(settings, RESULTS, client_id="test")) as fetcher,
        pytest.raises(KafkaUnavailableError),
    ):
        fetcher.fetch({0: [1]}, 0.2)
