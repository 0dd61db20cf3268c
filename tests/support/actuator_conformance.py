"""What every actuator does: one suite, subclassed for each of them with a fixture `platform`.

`ActuatorConformance` holds for all; `FencedPlatformConformance` for actuators that have names;
`RemotePlatformConformance` for those that call a platform which can fail.
"""

import asyncio
from enum import StrEnum
from typing import Protocol, TypeAlias

import pytest

from autoscaler.actuators.actuator import (
    Actuator,
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    ForeignScalerError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
)

Kind: TypeAlias = tuple[str, str, bool]
"""GPU type, zone, spot."""

HANG_TIMEOUT_S = 0.3
BOUND_S = 10.0
"""Each method ends within this time."""


class Fault(StrEnum):
    """How a platform fails."""

    HANG = "hang"
    DENIED = "denied"
    CONFLICT = "conflict"
    ABSURD = "absurd"


NAMED_ERRORS: dict[Fault, type[ActuatorError]] = {
    Fault.DENIED: ActuatorDeniedError,
    Fault.CONFLICT: ActuatorConflictError,
    Fault.ABSURD: UnexpectedAnswerError,
}


class Platform(Protocol):
    """What runs replicas, or a faithful fake of it, and makes actuators for it."""

    pool: str  # one that it can run
    kinds: tuple[Kind, ...]  # those that it can run; at least one

    async def open_actuator(self, name: str = "main", timeout_s: float = 8.0) -> Actuator:
        """Return a new actuator, as a process that starts has it. The platform closes it."""

    def replicas(self) -> dict[Kind, int]:
        """Return the replicas of the pool that the platform is told to run, without zeros."""

    def writes(self) -> int:
        """Return how often the replicas were changed."""


class FaultyPlatform(Platform, Protocol):
    """A platform that can fail, and that knows which pools it has."""

    unknown_pool: str

    def break_with(self, fault: Fault | None) -> None:
        """Fail from now on; None: work again."""


def order(platform: Platform, epoch: int, *counts: int, sequence: int = 1) -> PoolOrder:
    """Return an order of so many replicas of the platform's kinds, in their order."""
    kinds = tuple(
        KindCount(gpu_type=gpu_type, zone=zone, spot=spot, replicas=count)
        for (gpu_type, zone, spot), count in zip(platform.kinds, counts, strict=False)
    )
    return PoolOrder(pool=platform.pool, epoch=epoch, sequence=sequence, kinds=kinds)


def counts_of(kinds: tuple[KindCount, ...]) -> dict[Kind, int]:
    """Return the replicas by kind, without zeros."""
    return {(k.gpu_type, k.zone, k.spot): k.replicas for k in kinds if k.replicas}


class ActuatorConformance:
    """Orders are absolute, idempotent and fenced by their epoch."""

    async def test_the_replicas_become_those_of_the_order(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 3))
        assert platform.replicas() == {platform.kinds[0]: 3}

        await actuator.apply(order(platform, 1, 1, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 1}

    async def test_a_repeated_order_changes_nothing(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 2))
        writes = platform.writes()
        await actuator.apply(order(platform, 1, 2))

        assert platform.replicas() == {platform.kinds[0]: 2}
        assert platform.writes() == writes

    async def test_a_kind_that_an_order_lacks_gets_no_replicas(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        counts = range(1, len(platform.kinds) + 1)
        await actuator.apply(order(platform, 1, *counts))
        assert platform.replicas() == dict(zip(platform.kinds, counts, strict=True))

        await actuator.apply(order(platform, 1, 2, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 2}

    async def test_a_pool_goes_to_zero_and_back(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 2))
        await actuator.apply(order(platform, 1, 0, sequence=2))
        assert platform.replicas() == {}
        assert counts_of((await actuator.observe(platform.pool)).kinds) == {}

        await actuator.apply(order(platform, 1, 1, sequence=3))
        assert platform.replicas() == {platform.kinds[0]: 1}

    async def test_a_lower_epoch_is_refused_and_changes_nothing(self, platform: Platform) -> None:
        newer, older = await platform.open_actuator(), await platform.open_actuator()
        await older.apply(order(platform, 4, 1))
        await newer.apply(order(platform, 5, 3))

        with pytest.raises(StaleEpochError):
            await older.apply(order(platform, 4, 9, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 3}

    async def test_a_lower_epoch_is_refused_after_a_restart_too(self, platform: Platform) -> None:
        first = await platform.open_actuator()
        await first.apply(order(platform, 7, 2))
        await first.close()

        restarted = await platform.open_actuator()
        with pytest.raises(StaleEpochError):
            await restarted.apply(order(platform, 6, 9))
        assert platform.replicas() == {platform.kinds[0]: 2}
        await restarted.apply(order(platform, 7, 1, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 1}

    async def test_an_epoch_without_changes_is_kept_too(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 2))
        await actuator.apply(order(platform, 3, 2))

        with pytest.raises(StaleEpochError):
            await actuator.apply(order(platform, 2, 1))
        assert platform.replicas() == {platform.kinds[0]: 2}

    async def test_observe_reports_what_apply_ordered(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        counts = range(1, len(platform.kinds) + 1)
        await actuator.apply(order(platform, 8, *counts))
        observed = await (await platform.open_actuator()).observe(platform.pool)

        assert counts_of(observed.kinds) == dict(zip(platform.kinds, counts, strict=True))
        assert observed.epoch == 8


class FencedPlatformConformance:
    """A pool has one actuator."""

    async def test_a_second_actuator_is_refused_whatever_its_epoch(
        self, platform: Platform
    ) -> None:
        first, second = await platform.open_actuator("one"), await platform.open_actuator("two")
        await first.apply(order(platform, 1, 2))

        with pytest.raises(ForeignScalerError):
            await second.apply(order(platform, 2, 9))
        assert platform.replicas() == {platform.kinds[0]: 2}
        await first.apply(order(platform, 1, 1, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 1}


class SequencedPlatformConformance:
    """A platform keeps the sequence of its last order, so that a late one changes nothing."""

    async def test_an_older_order_of_the_same_epoch_is_refused(self, platform: Platform) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 3, 4, sequence=8))

        with pytest.raises(ActuatorConflictError):
            await (await platform.open_actuator()).apply(order(platform, 3, 1, sequence=7))
        assert platform.replicas() == {platform.kinds[0]: 4}
        await actuator.apply(order(platform, 3, 4, sequence=8))
        await actuator.apply(order(platform, 4, 2, sequence=1))
        assert platform.replicas() == {platform.kinds[0]: 2}


class RemotePlatformConformance:
    """A platform that fails gets a named error, and the replicas stay."""

    async def test_a_platform_that_hangs_is_a_timeout(self, platform: FaultyPlatform) -> None:
        """A platform may carry out an order after its timeout, but not after a newer one."""
        await (await platform.open_actuator()).apply(order(platform, 1, 2))
        actuator = await platform.open_actuator(timeout_s=HANG_TIMEOUT_S)
        platform.break_with(Fault.HANG)

        async with asyncio.timeout(BOUND_S):
            with pytest.raises(ActuatorTimeoutError):
                await actuator.apply(order(platform, 1, 5, sequence=2))
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(ActuatorTimeoutError):
                await actuator.observe(platform.pool)
        platform.break_with(None)
        await (await platform.open_actuator()).apply(order(platform, 1, 2, sequence=3))
        assert platform.replicas() == {platform.kinds[0]: 2}  # whether or not the late one came

    @pytest.mark.parametrize("fault", NAMED_ERRORS)
    async def test_a_failed_order_is_a_named_error_and_changes_nothing(
        self, platform: FaultyPlatform, fault: Fault
    ) -> None:
        actuator = await platform.open_actuator()
        await actuator.apply(order(platform, 1, 2))
        platform.break_with(fault)

        with pytest.raises(NAMED_ERRORS[fault]):
            await actuator.apply(order(platform, 1, 5, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 2}
        platform.break_with(None)
        await actuator.apply(order(platform, 1, 5, sequence=2))
        assert platform.replicas() == {platform.kinds[0]: 5}

    async def test_an_absurd_observation_is_a_named_error(self, platform: FaultyPlatform) -> None:
        actuator = await platform.open_actuator()
        platform.break_with(Fault.ABSURD)

        with pytest.raises(UnexpectedAnswerError):
            await actuator.observe(platform.pool)

    async def test_a_pool_that_the_platform_does_not_have_is_a_named_error(
        self, platform: FaultyPlatform
    ) -> None:
        actuator = await platform.open_actuator()
        known = order(platform, 1, 2)
        unknown = PoolOrder(pool=platform.unknown_pool, epoch=1, sequence=1, kinds=known.kinds)

        with pytest.raises(ActuatorError) as refused:
            await actuator.apply(unknown)
        assert refused.value.code == "unknown_pool"
        assert platform.replicas() == {}
