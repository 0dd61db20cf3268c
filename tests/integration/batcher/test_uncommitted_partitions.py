"""Goal: a partition without a committed offset is read from its beginning after a rebalance."""

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from batcher.faust_app.faust_patches import seek_to_next_offsets
from tests.integration.batcher.harness import Bench, job_ref
from topics.records.catalogue import REQUESTS


async def test_records_that_were_read_but_not_committed_are_read_again(bench: Bench) -> None:
    for number in range(1, 9):
        bench.requests.send(job_ref(number), 1)
    topic = bench.kafka.topic_prefix + REQUESTS["bulk"].name
    client = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bench.kafka.bootstrap_servers,
        group_id=topic,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await client.start()
    try:
        first = [await client.getone() for _ in range(8)]
        committed = TopicPartition(topic, first[0].partition)
        await client.commit({committed: OffsetAndMetadata(1, "")})
        offsets = await seek_to_next_offsets(client)
        assert {each: offset for each, offset in offsets.items() if offset} == {committed: 1}
        again = [await client.getone() for _ in range(7)]
    finally:
        await client.stop()
    places = {(record.partition, record.offset) for record in first}
    assert {(record.partition, record.offset) for record in again} == places - {
        (committed.partition, 0)
    }
