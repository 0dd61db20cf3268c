"""Goal: on a real broker one process owns the partition; a refused epoch is exceeded."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from autoscaler.ownership.owner import Owner
from core.clock import SystemClock
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SCALING
from topics.records.codec import encode, kind_headers
from topics.records.scaling import AutoscalerEpoch
from topics.settings import KafkaSettings


@pytest.fixture(params=["classic", "consumer"])
def kafka(kafka: KafkaSettings, request: pytest.FixtureRequest) -> KafkaSettings:
    return kafka.model_copy(update={"group_protocol": request.param})


@pytest.fixture
def owners(kafka: KafkaSettings, producer: RecordProducer) -> Iterator[list[Owner]]:
    with ExitStack() as stack:
        started = []
        for name in ("a", "b"):
            owner = Owner(kafka, producer, owner_id=name, clock=SystemClock())
            owner.start()
            stack.callback(owner.stop)
            started.append(owner)
        yield started


def epochs(owners: list[Owner]) -> list[int]:
    for one in owners:
        one.raise_failure()
    return [one.epoch for one in owners if one.epoch is not None]


def test_one_of_two_decides_and_the_other_follows_it(owners: list[Owner]) -> None:
    until(lambda: epochs(owners) == [1])
    first = next(one for one in owners if one.epoch == 1)
    first.stop()
    rest = [one for one in owners if one is not first]
    until(lambda: epochs(rest) == [2])
    assert first.epoch is None


def test_an_epoch_that_a_platform_refused_is_exceeded(owners: list[Owner]) -> None:
    until(lambda: epochs(owners) == [1])
    first = next(one for one in owners if one.epoch == 1)
    other = next(one for one in owners if one is not first)
    other.stop()
    first.abandon(41)
    assert first.epoch is None
    until(lambda: epochs([first]) == [42])


def test_a_higher_epoch_on_the_log_ends_the_ownership(
    owners: list[Owner], producer: RecordProducer
) -> None:
    until(lambda: epochs(owners) == [1])
    foreign = AutoscalerEpoch(epoch=9, owner_id="foreign", at_s=0.0)
    headers = kind_headers(AutoscalerEpoch)
    producer.send(SCALING.name, encode(foreign), partition=0, key=b"epoch", headers=headers)
    until(lambda: 10 in epochs(owners))
    until(lambda: epochs(owners) == [10])
