"""Goal: what the catalogue says of how long records can be read holds for every topic."""

import pytest

from topics.catalogue import DAY_MS, SEGMENT_DAYS, SHARED_TOPICS, Topic, pool_topics


@pytest.mark.parametrize("topic", [*SHARED_TOPICS, *pool_topics("p")], ids=lambda topic: topic.name)
def test_no_segment_takes_writes_for_longer(topic: Topic) -> None:
    default_ms = str(7 * DAY_MS)  # Kafka's own
    options = topic.configuration(min_insync_replicas=1)
    assert int(options.get("segment.ms", default_ms)) <= SEGMENT_DAYS * DAY_MS
