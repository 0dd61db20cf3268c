"""What each role may do on the log: rights on topics and consumer groups, as Kafka's ACLs.

Derived from the catalogue. Producers are idempotent, which the right to write to a topic includes
(KIP-679); none is transactional. The finaliser has no rights: it does not use the log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from topics.records.catalogue import (
    ATTEMPTS,
    JOB_CLASSES,
    REQUESTS_BULK,
    RESULTS,
    SHARED_TOPICS,
    Topic,
    pool_topics,
)

ResourceKind = Literal["topic", "group", "cluster"]

CLUSTER: Final = "kafka-cluster"
"""Kafka's name of the cluster as a resource."""

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "batcher": tuple(f"batcher-{job_class}" for job_class in JOB_CLASSES),
    "results-writer": ("results-writer",),
    "webhooks": ("webhooks",),
    "autoscaler": ("autoscaler",),
}
"""The groups that a role joins, without prefix; a gpu-consumer joins those of its pool."""

NO_GROUP: Final = "no-group"
"""The group name of clients that join none and commit nothing: their library requires a name."""

_CHECKED: Final = "DescribeConfigs"
"""The right to compare configurations at the start of a role (ADR 73)."""

LAGS_READ_BY: Final = "autoscaler"
"""The role that scales others by the lag of their groups: it reads offsets and no record."""

MEASURED_GROUPS: Final[Mapping[str, Topic]] = {
    "batcher-bulk": REQUESTS_BULK,
    "results-writer": RESULTS,
}
"""The groups whose lag is read, without prefix, and the topic of each."""

_OBSERVED_BY: Final = ("api",)
"""Roles that show which items of a pool are dispatched: they read its offsets."""


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """One right of a role. `name` is without prefix."""

    role: str
    kind: ResourceKind
    name: str  # `CLUSTER` for the cluster
    operation: str  # of Kafka's ACLs


def role_access(pools: Iterable[str]) -> list[Access]:
    """Return all rights of all roles, sorted, each once."""
    pools = list(pools)
    topics = [*SHARED_TOPICS, *(topic for pool in pools for topic in pool_topics(pool))]
    found = {access for topic in topics for access in _of_topic(topic)}
    for role, groups in GROUPS.items():
        found |= {Access(role, "group", group, "Read") for group in groups}
    for group, topic in MEASURED_GROUPS.items():
        found.add(Access(LAGS_READ_BY, "group", group, "Describe"))
        found.add(Access(LAGS_READ_BY, "topic", topic.name, "Describe"))
    for pool in pools:
        names = [gpu_group(pool, job_class) for job_class in JOB_CLASSES]
        found |= {Access("gpu-consumer", "group", name, "Read") for name in names}
        found |= {Access(role, "group", n, "Describe") for role in _OBSERVED_BY for n in names}
        # A replica creates the topics of its pool when they are missing.
        created = [ATTEMPTS, *pool_topics(pool)]
        found |= {Access("gpu-consumer", "topic", topic.name, "Create") for topic in created}
        grown = [topic for topic in pool_topics(pool) if topic.grows]
        found |= {Access("gpu-consumer", "topic", topic.name, "Alter") for topic in grown}
    for role in {one.role for one in found}:
        found.add(Access(role, "group", NO_GROUP, "Describe"))
        found.add(Access(role, "cluster", CLUSTER, _CHECKED))
    return sorted(found)


def gpu_group(pool: str, job_class: str) -> str:
    """Return the consumer group of a pool's replicas, without prefix."""
    return f"gpu-{pool}-{job_class}"


def _of_topic(topic: Topic) -> Iterable[Access]:
    for role in topic.written_by:
        yield Access(role, "topic", topic.name, "Write")
    for role in topic.read_by:
        yield Access(role, "topic", topic.name, "Read")
    for role in {*topic.written_by, *topic.read_by}:
        yield Access(role, "topic", topic.name, _CHECKED)
