"""Goal: a partition that a process cannot read is named until it can."""

import json
import logging

import pytest

from topics import metrics
from topics.clients.offset_tracker import Partition
from topics.clients.unreadable_partitions import ReadStatistics, UnreadablePartitions

DEAD, HEALTHY = ("results", 3), ("results", 4)


class Watch:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def unreadable(watch: Watch) -> UnreadablePartitions:
    return UnreadablePartitions(5.0, watch)


def test_a_partition_is_named_after_the_timeout_until_it_can_be_read(
    unreadable: UnreadablePartitions, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gauge = metrics.PARTITION_UNREADABLE_SECONDS.labels("results", "3")
    unreadable.observe([DEAD])
    watch.now_s += 4
    unreadable.observe([DEAD])
    assert unreadable.partitions == set()
    assert gauge._value.get() == 0
    watch.now_s += 2
    assert unreadable.partitions == {DEAD}
    unreadable.observe([DEAD])
    unreadable.observe([DEAD])
    assert gauge._value.get() == 6

    unreadable.observe([])
    assert unreadable.partitions == set()
    assert gauge._value.get() == 0
    assert [record.message for record in caplog.records] == [
        "a partition cannot be read",
        "a partition can be read again",
    ]


def broker(
    number: int, *, state: str = "UP", waiting: int = 1, idle_s: float = 0.1
) -> dict[str, object]:
    return {
        "nodeid": number,
        "state": state,
        "waitresp_cnt": waiting,
        "rxidle": int(idle_s * 1e6),
        "source": "learned",
    }


def found(
    unreadable: UnreadablePartitions,
    watch: Watch,
    of_dead: dict[str, object],
    *,
    leader: int = 2,
    read: tuple[Partition, ...] = (DEAD, HEALTHY),
) -> set[Partition]:
    """Return what is unreadable after a report in which broker 2 leads one partition."""
    statistics = {
        "name": "client",
        "brokers": {"1": broker(1), "2": of_dead},
        "topics": {
            "t.results": {
                "partitions": {
                    "3": {"leader": leader, "broker": leader, "txmsgs": 1},
                    "4": {"leader": 1, "broker": 1},
                }
            }
        },
    }
    reader = ReadStatistics(unreadable, "t.", 0.5, lambda: read)
    for _ in range(2):
        reader.apply(json.dumps(statistics))
        watch.now_s += 5
    return set(unreadable.partitions)


@pytest.mark.parametrize(
    "of_dead",
    [broker(2, idle_s=2), broker(2, state="TRY_CONNECT", waiting=0), broker(2, state="DOWN")],
)
def test_a_partition_of_a_broker_that_does_not_answer_is_unreadable(
    unreadable: UnreadablePartitions, watch: Watch, of_dead: dict[str, object]
) -> None:
    assert found(unreadable, watch, of_dead) == {DEAD}


def test_a_partition_without_leader_is_unreadable(
    unreadable: UnreadablePartitions, watch: Watch
) -> None:
    assert found(unreadable, watch, broker(2), leader=-1) == {DEAD}


def test_an_unknown_partition_is_unreadable(unreadable: UnreadablePartitions, watch: Watch) -> None:
    other = ("events", 0)
    assert found(unreadable, watch, broker(2), read=(HEALTHY, other)) == {other}


@pytest.mark.parametrize("of_dead", [broker(2), broker(2, waiting=0, idle_s=100)])
def test_a_partition_that_is_not_fetched_is_readable(
    unreadable: UnreadablePartitions, watch: Watch, of_dead: dict[str, object]
) -> None:
    """A client under backpressure asks its broker for nothing."""
    assert found(unreadable, watch, of_dead) == set()
