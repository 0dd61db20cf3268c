"""Goal: the catalogue's constants of retention hold for every topic."""

import pytest

from topics.records.catalogue import DAY_MS, SEGMENT_DAYS, SHARED_TOPICS, Topic, pool_topics
from topics.records.records import Batch, Chunk, DeadLetter, Outcomes


@pytest.mark.parametrize("topic", [*SHARED_TOPICS, *pool_topics("p")], ids=lambda topic: topic.name)
def test_no_segment_is_written_for_longer_than_the_constant(topic: Topic) -> None:
    default_ms = str(7 * DAY_MS)  # Kafka's own
    options = topic.configuration(min_insync_replicas=1)
    assert int(options.get("segment.ms", default_ms)) <= SEGMENT_DAYS * DAY_MS


@pytest.mark.parametrize("topic", [*SHARED_TOPICS, *pool_topics("p")], ids=lambda topic: topic.name)
def test_shorter_retention_applies_to_prompts_and_answers_only(topic: Topic) -> None:
    fewer = topic.configuration(min_insync_replicas=1, bodies_days=3).get("retention.ms")
    usual = topic.configuration(min_insync_replicas=1).get("retention.ms")
    holds = {Batch, Chunk, DeadLetter, Outcomes} & {*topic.records}
    assert fewer == (str(3 * DAY_MS) if holds else usual)
