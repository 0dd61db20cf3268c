"""Reads topics as a member of a consumer group, with explicit commits."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from topics.clients.client_factory import new_client
from topics.clients.group_membership import GroupMembership
from topics.clients.missing_topics import METADATA_TIMEOUT_S, MissingTopicMonitor
from topics.clients.offset_tracker import Partition
from topics.clients.partition_offsets import offsets_at
from topics.clients.unreadable_partitions import ReadStatistics, UnreadablePartitions
from topics.errors import KafkaUnavailableError, StaleMemberError
from topics.metrics import LAG
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

_STALE_CODES = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._STATE,  # noqa: SLF001  the name the client publishes
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)
_POLL_INTERVAL_MS_MAX = 300_000
_FETCH_WAIT_S = 0.25


class GroupConsumer:
    """A group member with cooperative rebalancing; its owner commits what it has finished."""

    def __init__(  # noqa: PLR0913  each one is an option of the client
        self,
        settings: KafkaSettings,
        *,
        group: str,
        topics: Sequence[str],
        client_id: str,
        on_assign: Callable[[list[Partition]], None],
        on_revoke: Callable[[list[Partition]], None],
        fetch_bytes_min: int = 1,
        fetch_wait_s: float = _FETCH_WAIT_S,
        joins: bool = True,
    ) -> None:
        """Join `group`; without `joins` only connect, and join by `join`.

        Both callbacks run inside `poll`; drop the work of revoked partitions.

        A broker answers a fetch when it has `fetch_bytes_min`, or after `fetch_wait_s`. The fetch
        of a new partition waits behind a fetch in progress.
        """
        self._prefix, self._group, self._topics = settings.topic_prefix, group, tuple(topics)
        self._assigned: set[Partition] = set()
        self._paused: set[Partition] = set()
        self.is_assignment_lost = False
        """In `on_revoke`: whether other members own the partitions already (`on_lost`)."""
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._membership = GroupMembership(settings, self._prefix + group, settings.group_protocol)
        self._unreadable = UnreadablePartitions(settings.partition_timeout_s)
        statistics = ReadStatistics(
            self._unreadable, self._prefix, fetch_wait_s, lambda: self.read_partitions
        )
        self._consumer = new_client(
            Consumer,
            settings.client_options()
            | _membership(settings)
            | statistics.client_options()
            | {
                "client.id": client_id,
                "group.id": self._prefix + group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "max.poll.interval.ms": _POLL_INTERVAL_MS_MAX,
                "fetch.min.bytes": fetch_bytes_min,
                "fetch.wait.max.ms": int(fetch_wait_s * 1000),
                "queued.max.messages.kbytes": 32 * 1024,
            },
        )
        self._membership.remove_predecessor()
        # Under the `consumer` protocol the id is known before the member joins.
        self._membership.record_member_id(self._consumer.memberid())
        names = [self._prefix + topic for topic in topics]
        has_error_events = settings.group_protocol == "classic"
        self._missing = MissingTopicMonitor(
            self._consumer, names, has_error_events=has_error_events
        )
        self._names = names
        self._is_leaving = False
        if joins:
            self.join()

    @property
    def assigned(self) -> frozenset[Partition]:
        """The partitions that this member owns now."""
        return frozenset(self._assigned)

    @property
    def read_partitions(self) -> frozenset[Partition]:
        """The partitions that this member owns and has not paused."""
        return frozenset(self._assigned - self._paused)

    def poll(self, count_max: int, timeout_s: float) -> list[ReceivedRecord]:
        """Return up to `count_max` records, waiting at most `timeout_s` for the first.

        Raises KafkaUnavailableError for a fatal client error, or a topic that stays unknown.
        """
        if self._is_leaving and not self._assigned:
            self._join_again()
        # `consume(count_max)` would wait for all of them; the first record must not wait.
        first = self._consumer.consume(1, timeout_s)
        more = self._consumer.consume(count_max - 1, 0) if first and count_max > 1 else []
        messages = first + more
        self._missing.check(messages)
        return received_records(messages, self._prefix)

    def join(self) -> None:
        """Join the group, if the constructor has not."""
        self._is_leaving = False
        self._consumer.subscribe(
            self._names, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
        )

    def rejoin(self) -> None:
        """Leave the group, and join it again in a later `poll`, once no partition is left.

        For a member with one partition at most; the group's leader then sees new partitions. While
        the group rebalances, librdkafka postpones `unsubscribe`, and a `subscribe` that follows
        cancels it: a member would keep its partition without `on_revoke` and `on_assign`. A member
        without a partition joins at once, so a rebalance may cancel its departure: call it again.
        """
        self._consumer.unsubscribe()
        self._is_leaving = True

    def _join_again(self) -> None:
        try:
            self.join()
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None

    def commit(self, next_offsets: Mapping[Partition, int]) -> bool:
        """Commit the offset after the last finished record, for partitions that are assigned.

        Return whether the broker has committed it; if not, commit again later. Raises
        StaleMemberError when the group has removed this member: keep polling, and `on_revoke` names
        the lost partitions. Partitions that stay assigned do not seek back, so drop nothing.
        """
        if self.is_assignment_lost:
            raise StaleMemberError("the partitions are lost")
        offsets = [
            TopicPartition(self._prefix + topic, number, offset)
            for (topic, number), offset in next_offsets.items()
            if (topic, number) in self._assigned
        ]
        self._observe_lag()
        if not offsets:
            return True
        try:
            results = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            _raise_if_stale(error.args[0])
            return False
        for result in results:
            if result.error is not None:
                _raise_if_stale(result.error)
                return False
        return True

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop fetching `partitions`; fetched records are kept, and polling must go on.

        A partition that is revoked and assigned again is not paused.
        """
        places = self._ours(partitions)
        self._consumer.pause(places)
        self._paused.update(self._named(places))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Fetch `partitions` again."""
        places = self._ours(partitions)
        self._consumer.resume(places)
        self._paused.difference_update(self._named(places))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return each partition's end offset. Raises KafkaUnavailableError."""
        # Each request waits behind the fetch in progress, see `fetch_wait_s`.
        places = [TopicPartition(self._prefix + t, n) for t, n in partitions]
        try:
            found = offsets_at(self._consumer, places, OFFSET_END, METADATA_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaUnavailableError(error.args[0].str()) from None
        return {(name.removeprefix(self._prefix), n): end for (name, n), end in found.items()}

    def lag(self) -> dict[Partition, int]:
        """Return each owned partition's lag in records, as far as the client knows the end."""
        behind: dict[Partition, int] = {}
        for place in self._consumer.position(self._ours(self._assigned)):
            ends = self._consumer.get_watermark_offsets(place, cached=True)
            if ends is not None and place.offset >= 0:
                topic = place.topic.removeprefix(self._prefix)
                behind[topic, place.partition] = max(0, ends[1] - place.offset)
        return behind

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()
        self._unreadable.observe(())
        self._membership.clear()

    def _observe_lag(self) -> None:
        behind = dict.fromkeys(self._topics, 0)
        for (topic, _), count in self.lag().items():
            behind[topic] += count
        for topic, count in behind.items():
            LAG.labels(topic, self._group).set(count)

    def _ours(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        return [
            TopicPartition(self._prefix + topic, number)
            for topic, number in partitions
            if (topic, number) in self._assigned
        ]

    def _assign(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        # The client keeps a pause when a partition is revoked; its next assignment starts unpaused.
        self._consumer.resume(places)
        partitions = self._named(places)
        self._assigned.update(partitions)
        self._membership.record_member_id(self._consumer.memberid())
        self._on_assign(partitions)

    def _revoke(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = self._named(places)
        self._on_revoke(partitions)  # may commit once more
        self._assigned.difference_update(partitions)
        self._paused.difference_update(partitions)

    def _lose(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.is_assignment_lost = True
        try:
            self._revoke(consumer, places)
        finally:
            self.is_assignment_lost = False

    def _named(self, places: list[TopicPartition]) -> list[Partition]:
        return [(place.topic.removeprefix(self._prefix), place.partition) for place in places]


def _membership(settings: KafkaSettings) -> dict[str, str | int | float | bool]:
    """Return the membership options; under the `consumer` protocol the broker sets the rest."""
    if settings.group_protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(settings.session_timeout_s * 1000),
        "heartbeat.interval.ms": int(settings.heartbeat_s * 1000),
    }


def _raise_if_stale(error: KafkaError) -> None:
    if error.code() in _STALE_CODES:
        raise StaleMemberError(error.str())
