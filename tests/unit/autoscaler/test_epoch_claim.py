"""Goal: of all processes that may hold the partition, one decides: the log says which."""

from autoscaler.ownership.epoch_claim import EpochClaim
from autoscaler.ownership.scaling_log import ScalingLog
from topics.records.records import Record
from topics.records.scaling import AutoscalerEpoch, PoolScaling


def epoch(number: int, owner: str) -> AutoscalerEpoch:
    return AutoscalerEpoch(epoch=number, owner_id=owner, at_s=0.0)


def scaling(number: int, sequence: int, target: int) -> PoolScaling:
    return PoolScaling(
        pool="p",
        epoch=number,
        sequence=sequence,
        at_s=0.0,
        mode="active",
        actuator="",
        target=target,
        kinds=[],
        removals=[],
        awake=[],
        standby=0,
        start_s=0.0,
        wake_s=0.0,
    )


class Partition:
    """The topic, and processes that read and write it."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def read(self, claim: EpochClaim) -> int | None:
        """Read to the end; append the claim that is due; return the epoch of the process."""
        if claim.needs_end:
            claim.set_end(len(self.records))
        claim.apply(self.records[claim._next_offset :], len(self.records))
        if (number := claim.take_claim()) is not None:
            self.records.append(epoch(number, claim.owner_id))
        return claim.epoch


def test_an_epoch_counts_once_it_was_read_back() -> None:
    log, claim = Partition(), EpochClaim("a")
    assert log.read(claim) is None
    claim.assign()
    assert log.read(claim) is None
    assert log.read(claim) == 1


def test_the_epoch_is_above_all_that_the_log_has() -> None:
    log, claim = Partition(), EpochClaim("b")
    log.records = [epoch(3, "x"), scaling(3, 1, 7), epoch(9, "y"), epoch(4, "z")]
    claim.assign()
    log.read(claim)
    assert log.read(claim) == 10
    assert claim.log.pools["p"].target == 7


def test_nothing_is_claimed_before_the_end_was_read() -> None:
    claim = EpochClaim("a")
    claim.assign()
    claim.set_end(5)
    claim.apply([epoch(1, "x")], 4)
    assert claim.take_claim() is None
    claim.apply([epoch(6, "y")], 5)
    assert claim.take_claim() == 7
    assert claim.take_claim() is None


def test_of_two_that_claim_the_same_epoch_the_first_in_the_log_wins() -> None:
    log, first, second = Partition(), EpochClaim("a"), EpochClaim("b")
    for claim in (first, second):
        claim.assign()
        claim.set_end(0)
    numbers = [claim.take_claim() for claim in (first, second)]
    assert numbers == [1, 1]
    log.records = [epoch(1, "b"), epoch(1, "a")]

    assert log.read(first) is None
    assert first.is_superseded
    assert log.read(second) == 1
    assert not second.is_superseded


def test_a_higher_epoch_and_a_revoked_partition_end_the_ownership_at_once() -> None:
    log, claim = Partition(), EpochClaim("a")
    claim.assign()
    log.read(claim)
    assert log.read(claim) == 1
    log.records.append(epoch(2, "b"))
    assert log.read(claim) is None
    assert claim.is_superseded

    claim.assign()
    log.read(claim)
    assert log.read(claim) == 3
    claim.revoke()
    assert claim.epoch is None


def test_an_epoch_that_a_platform_has_seen_is_exceeded() -> None:
    log, claim = Partition(), EpochClaim("a")
    claim.require_above(41)
    claim.assign()
    log.read(claim)
    assert log.read(claim) == 42


def test_state_of_a_lower_epoch_never_replaces_that_of_a_higher_one() -> None:
    log = ScalingLog()
    for record in (scaling(2, 1, 5), scaling(1, 9, 50), scaling(2, 2, 6)):
        log.apply(record)
    assert log.pools["p"].target == 6
