# ruff: noqa: SLF001 - reads private parts of an exact release, see `faust_patches.PINNED`
"""Which partitions aiokafka cannot read, from the state of its fetcher: no requests.

The rule is that of `topics.clients.unreadable_partitions`: a partition without a leader, or whose
leader owes an answer to a fetch. aiokafka keeps one fetch in flight for each broker.
"""

from typing import Any, Final

LATE_MS: Final = 1500.0
"""Age of the last answer from which a fetch in flight is late; a broker answers after 0.25 s."""


def unreadable_partitions(client: Any, *, now_ms: float) -> list[Any]:
    """Return the assigned partitions that an `AIOKafkaConsumer` cannot read at Unix time `now_ms`.

    The list is empty before the client has started and while nothing is assigned. Any thread may
    call it.
    """
    fetcher, subscription = client._fetcher, client._subscription.subscription
    assignment = None if subscription is None else subscription.assignment
    if fetcher is None or assignment is None:
        return []
    return [each for each in assignment.tps if _is_unreadable(client, assignment, each, now_ms)]


def _is_unreadable(client: Any, assignment: Any, partition: Any, now_ms: float) -> bool:
    fetcher, state = client._fetcher, assignment.state_value(partition)
    if partition in fetcher._records:
        return False  # fetched records wait: backpressure
    leader = client._client.cluster.leader_for_partition(partition)
    if leader is None or leader == -1:
        return True
    is_late = state.timestamp is None or now_ms - state.timestamp > LATE_MS
    return is_late and leader in fetcher._in_flight
