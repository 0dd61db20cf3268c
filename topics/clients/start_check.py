"""What a role checks of the broker when it starts, so that a wrong topic loses no record later."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from topics.clients.admin import TopicAdmin
from topics.clients.topic_drift import TopicDifference
from topics.errors import KafkaUnavailableError, TopicDriftError
from topics.records.catalogue import RETENTION_DAYS, SHARED_TOPICS, Topic

_LOG = logging.getLogger(__name__)

CREATION_S_MAX: Final = 30.0
"""How long a role waits for missing topics: `millrace topics create` may be running."""

OFFSETS_RETENTION_MINUTES: Final = RETENTION_DAYS * 24 * 60
_RETRY_S: Final = 0.5


def topics_of_role(role: str) -> list[Topic]:
    """Return the shared topics that a role writes or reads."""
    return [topic for topic in SHARED_TOPICS if role in (*topic.written_by, *topic.read_by)]


def check_topics(admin: TopicAdmin, topics: Sequence[Topic], *, broker_wait_s: float) -> None:
    """Wait for the broker, then compare its topics with the catalogue.

    Topics that would lose records end the role: missing ones, other numbers of partitions, a
    shorter retention, smaller records, compaction where every record counts. Other differences are
    logged. A role without the right to read configurations starts with a warning. Raises
    KafkaUnavailableError and TopicDriftError.
    """
    admin.wait_for_broker(broker_wait_s)
    try:
        differences = _await_topics(admin, topics)
        offsets_minutes = admin.offsets_retention_minutes()
    except KafkaUnavailableError as failure:
        _LOG.warning("topics were not checked", extra={"reason": str(failure)})
        return
    wrong = [difference for difference in differences if difference.loses_records]
    if wrong:
        raise TopicDriftError(
            f"{'; '.join(map(str, wrong))}. Run `millrace topics create` for missing topics, "
            "change the others as `millrace topics check` says, then start this role again.",
            topics=[difference.topic for difference in wrong],
        )
    for difference in differences:
        extra = {"topic": difference.topic, "difference": difference.text}
        _LOG.warning("a topic differs from the catalogue", extra=extra)
    if offsets_minutes is not None and offsets_minutes < OFFSETS_RETENTION_MINUTES:
        _LOG.warning(
            "the broker forgets offsets of stopped groups before their records are deleted",
            extra={
                "offsets.retention.minutes": offsets_minutes,
                "needed": OFFSETS_RETENTION_MINUTES,
            },
        )


def _await_topics(admin: TopicAdmin, topics: Sequence[Topic]) -> list[TopicDifference]:
    """Return the differences once no topic is missing, or after `CREATION_S_MAX`."""
    give_up_at_s = time.monotonic() + CREATION_S_MAX
    while True:
        differences = admin.differences(topics)
        is_any_missing = any(difference.is_missing for difference in differences)
        if not is_any_missing or time.monotonic() > give_up_at_s:
            return differences
        time.sleep(_RETRY_S)
