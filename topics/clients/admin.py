"""Creates topics, compares them with the catalogue, and administers consumer groups."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
    TopicMetadata,
)

from topics.clients.client_factory import new_client
from topics.clients.missing_topics import ABSENT_TOPIC
from topics.clients.partition_offsets import offsets_at
from topics.clients.topic_drift import (
    TopicDifference,
    missing_topic,
    option_differences,
    partition_difference,
    replica_difference,
)
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import Topic
from topics.settings import KafkaSettings

_Result = TypeVar("_Result")

REQUEST_TIMEOUT_S = 15.0
_RETRY_S = 0.05
_RETENTION = "retention.ms"
_TRANSIENT = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


class TopicAdmin:
    """Administration of the topics and consumer groups of one installation.

    Names of topics and groups are given without the prefix.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = new_client(AdminClient, settings.client_options())
        self._readers: dict[str, Consumer] = {}
        self._created: set[str] = set()  # or found to exist, by `create`

    def wait_for_broker(self, timeout_s: float) -> None:
        """Wait until a broker answers. Raises KafkaUnavailableError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._client.list_topics(timeout=1.0)
                return
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise self._unavailable(error) from None

    def create(self, topics: Iterable[Topic]) -> list[str]:
        """Create missing topics and return their names; existing topics are not changed.

        Raises KafkaUnavailableError.
        """
        wanted = [
            NewTopic(
                self._settings.topic_prefix + topic.name,
                num_partitions=topic.partition_count,
                replication_factor=self._settings.replication_factor,
                config=self._configuration(topic),
            )
            for topic in topics
        ]
        created = []
        futures = self._client.create_topics(wanted, operation_timeout=REQUEST_TIMEOUT_S)
        with self._named_failures():
            for name, future in futures.items():
                if _refusal(future) != KafkaError.TOPIC_ALREADY_EXISTS:
                    future.result()
                    created.append(name)
        self._created |= {topic.topic for topic in wanted}
        self._await_leaders({topic.topic for topic in wanted})
        return created

    def apply_body_retention(self, topics: Iterable[Topic]) -> None:
        """Set the configured retention on those of the topics that hold prompts or answers.

        The topics must exist. Needs the right to describe and alter configurations, which only an
        installation's operator has. Raises KafkaUnavailableError.
        """
        bodies = [topic for topic in topics if topic.holds_bodies]
        self._set_options(
            {t.name: {_RETENTION: self._configuration(t)[_RETENTION]} for t in bodies}
        )

    def apply_configuration(self, topics: Iterable[Topic]) -> None:
        """Set every option of the topics as the catalogue has it: an earlier release may differ.

        Otherwise as `apply_body_retention`.
        """
        self._set_options({topic.name: self._configuration(topic) for topic in topics})

    def _set_options(self, options: Mapping[str, Mapping[str, str]]) -> None:
        """Set options, by topic, where they differ."""
        wanted = {self._settings.topic_prefix + name: values for name, values in options.items()}
        changes = []
        for name, actual in self._described(wanted).items():
            entries = [
                ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
                for option, value in wanted[name].items()
                if actual.get(option) != value
            ]
            if entries:
                change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
                changes.append(change)
        if not changes:
            return
        with self._named_failures():
            for future in self._client.incremental_alter_configs(changes).values():
                future.result(REQUEST_TIMEOUT_S)

    def drift(self, topics: Iterable[Topic]) -> list[str]:
        """Return one sentence for each difference between the broker and the catalogue.

        Raises KafkaUnavailableError.
        """
        return [str(difference) for difference in self.differences(topics)]

    def differences(self, topics: Iterable[Topic]) -> list[TopicDifference]:
        """Return the differences between the broker and the catalogue.

        Raises KafkaUnavailableError.
        """
        wanted = {self._settings.topic_prefix + topic.name: topic for topic in topics}
        present = self._present(wanted.keys())
        differences = [missing_topic(name) for name in sorted(wanted.keys() - present.keys())]
        found = {name: topic for name, topic in wanted.items() if name in present}
        for name, topic in found.items():
            differences += self._shape_differences(name, present[name], topic)
        for name, actual in self._described(found).items() if found else ():
            differences += option_differences(name, actual, self._configuration(found[name]))
        return differences

    def offsets_retention_minutes(self) -> int | None:
        """Return the broker's `offsets.retention.minutes`, or None if it is unknown.

        Raises KafkaUnavailableError, also without the right to read the broker's configuration.
        """
        with self._named_failures():
            cluster = self._client.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
            brokers = [node.id for node in cluster.result(REQUEST_TIMEOUT_S).nodes]
            resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
            (described,) = self._client.describe_configs([resource]).values()
            entry = described.result(REQUEST_TIMEOUT_S).get("offsets.retention.minutes")
        return None if entry is None or entry.value is None else int(entry.value)

    def partition_count(self, topic: Topic) -> int:
        """Return how many partitions a topic has. Raises KafkaUnavailableError."""
        found = self._topic_metadata(topic)
        if found.error is not None or not found.partitions:
            text = f"the partitions of {found.topic} are not known yet"
            raise KafkaUnavailableError(text, topic=found.topic)
        return len(found.partitions)

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Add partitions to a topic until it has `count`; one with as many is not changed.

        Readers and writers go on. Raises KafkaUnavailableError.
        """
        name = self._settings.topic_prefix + topic.name
        with self._named_failures():
            (future,) = self._client.create_partitions([NewPartitions(name, count)]).values()
            # Another process may have added them.
            if _refusal(future) != KafkaError.INVALID_PARTITIONS:
                future.result()

    def unavailable_partitions(self, topic: Topic) -> frozenset[int]:
        """Return the partitions that accept no record now.

        They have no leader or too few in-sync replicas. Raises KafkaUnavailableError.
        """
        replicas_min = self._settings.min_insync_replicas
        return frozenset(
            number
            for number, found in self._topic_metadata(topic).partitions.items()
            if found.leader < 0 or len(found.isrs) < replicas_min
        )

    def lag(self, group: str, topic: Topic) -> dict[int, int]:
        """Return the number of records of each partition that `group` has not committed.

        Raises KafkaUnavailableError.
        """
        return {n: end - done for n, (done, end) in self.group_offsets(group, topic).items()}

    def group_offsets(self, group: str, topic: Topic) -> dict[int, tuple[int, int]]:
        """Return the offset that `group` goes on with and the end, of each partition.

        Raises KafkaUnavailableError.
        """
        name = self._settings.topic_prefix + topic.name
        count = self.partition_count(topic) if topic.grows else topic.partition_count
        places = [TopicPartition(name, number) for number in range(count)]
        reader = self._reader(self._settings.topic_prefix + group)
        with self._named_failures():
            committed = _retry_transient(
                lambda: reader.committed(places, timeout=REQUEST_TIMEOUT_S)
            )
            first, end = (
                _retry_transient(partial(offsets_at, reader, places, at, REQUEST_TIMEOUT_S))
                for at in (OFFSET_BEGINNING, OFFSET_END)
            )
        done = {(name, place.partition): place.offset for place in committed}
        return {n: (max(done[name, n], first[name, n]), end[name, n]) for n in range(count)}

    def member_count(self, group: str) -> int:
        """Return a group's number of members, dead ones included until their session ends.

        Raises KafkaUnavailableError.
        """
        name = self._settings.topic_prefix + group
        with self._named_failures():
            found = self._client.describe_consumer_groups([name], request_timeout=REQUEST_TIMEOUT_S)
            return len(found[name].result(REQUEST_TIMEOUT_S).members)

    def alter_offsets(self, group: str, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Set a group's committed offsets, by partition. It must have no member.

        Raises KafkaUnavailableError.
        """
        prefix = self._settings.topic_prefix
        places = [TopicPartition(prefix + topic.name, n, offset) for n, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(prefix + group, places)
        with self._named_failures():
            (answer,) = self._client.alter_consumer_group_offsets(
                [request], request_timeout=REQUEST_TIMEOUT_S
            ).values()
            for place in answer.result(REQUEST_TIMEOUT_S).topic_partitions:
                if place.error is not None:
                    raise KafkaUnavailableError(place.error.str(), topic=place.topic)

    def _reader(self, group: str) -> Consumer:
        """Return a client that reads a group's offsets without joining it.

        Not the admin client: librdkafka 2.16 crashes on the response while the group's coordinator
        is loading (`rd_kafka_cgrp_op` without a group).
        """
        if group not in self._readers:
            options = self._settings.client_options()
            options |= {"group.id": group, "enable.auto.commit": False}
            self._readers[group] = new_client(Consumer, options)
        return self._readers[group]

    def _topic_metadata(self, topic: Topic) -> TopicMetadata:
        name = self._settings.topic_prefix + topic.name
        with self._named_failures():
            listed = self._client.list_topics(name, timeout=REQUEST_TIMEOUT_S)
        return listed.topics[name]

    def _present(self, names: Set[str]) -> dict[str, TopicDescription]:
        """Return those of `names` that exist; wait until the broker knows those just created."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            present = self._known(names)
            if names & self._created <= present.keys() or time.monotonic() > deadline:
                return present
            time.sleep(_RETRY_S)

    def _known(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Return those of `names` that the broker which answers knows.

        Asks for them alone: a shared broker may have thousands of other topics. Without rights a
        topic is refused whether or not it exists.
        """
        known, wanted = {}, TopicCollection(sorted(names))
        with self._named_failures():
            futures = self._client.describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)
            for name, future in futures.items():
                if _refusal(future) not in ABSENT_TOPIC:
                    known[name] = future.result()
        return known

    def _shape_differences(
        self, name: str, found: TopicDescription, topic: Topic
    ) -> Iterator[TopicDifference]:
        yield from partition_difference(name, len(found.partitions), topic)
        wanted = self._settings.replication_factor
        # The lowest of all partitions: a change of the factor moves one after the other.
        copies = min((len(p.replicas) for p in found.partitions), default=wanted)
        setting = f"{self._settings.env_prefix}REPLICATION_FACTOR"
        yield from replica_difference(name, copies, wanted, setting)

    def _configuration(self, topic: Topic) -> dict[str, str]:
        return topic.configuration(
            min_insync_replicas=self._settings.min_insync_replicas,
            bodies_days=self._settings.retention_days,
        )

    def _described(self, names: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """Return the options of existing topics. Raises KafkaUnavailableError.

        Retries unknown topics: the broker that listed a new topic may know it before others do.
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        waiting, described = set(names), {}
        while waiting:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in waiting]
            for resource, future in self._client.describe_configs(resources).items():
                with self._named_failures():
                    is_unknown = _refusal(future) == KafkaError.UNKNOWN_TOPIC_OR_PART
                    if is_unknown and time.monotonic() < deadline:
                        continue
                    entries = future.result()
                described[resource.name] = {name: entry.value for name, entry in entries.items()}
                waiting.discard(resource.name)
            if waiting:
                time.sleep(_RETRY_S)
        return described

    def _await_leaders(self, names: set[str]) -> None:
        """Wait until every partition of new topics has a leader: before, they cannot be used."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while time.monotonic() < deadline:
            known = self._known(names)
            if known.keys() == names and all(
                topic.partitions and all(p.leader is not None for p in topic.partitions)
                for topic in known.values()
            ):
                return
            time.sleep(_RETRY_S)
        raise KafkaUnavailableError("topics were created but have no leaders")

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        """Raise KafkaUnavailableError with the servers for a request that failed."""
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: KafkaException | TimeoutError) -> KafkaUnavailableError:
        """Name the servers and their setting, which the client's own message does not."""
        timed_out = f"no answer within {REQUEST_TIMEOUT_S:g} s"
        reason = timed_out if isinstance(error, TimeoutError) else error.args[0].str()
        servers = self._settings.bootstrap_servers
        setting = f"{self._settings.env_prefix}BOOTSTRAP_SERVERS"
        return KafkaUnavailableError(f"Kafka at {servers} ({setting}): {reason}")


def _refusal(future: Future[Any]) -> int | None:
    """Wait for an answer; return the code of an error of Kafka, else None. Raises TimeoutError.

    An exception that is raised by a future and caught refers to itself, by its traceback and the
    future there. It keeps the client, its threads and connections until garbage is collected.
    """
    error = future.exception(REQUEST_TIMEOUT_S)
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _retry_transient(request: Callable[[], _Result]) -> _Result:
    """Retry while a broker that has just become leader or coordinator refuses.

    Raises KafkaException.
    """
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _TRANSIENT or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
