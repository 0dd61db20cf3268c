"""Goal: a replica in standby joins when it is named, or when nobody scales its pool."""

import pytest

from core.errors import SchemaTooNewError
from gpu_consumers.standby.standby import apply_records
from gpu_consumers.standby.standby_orders import (
    JOIN_SPREAD_S,
    SILENCE_S_MAX,
    JoinReason,
    StandbyOrders,
    silence_s,
)
from topics.records.catalogue import SCALING
from topics.records.codec import Headers, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.records.scaling import AutoscalerEpoch, PoolScaling, ScalingOverride


def scaling(
    *awake: str, epoch: int = 1, pool: str = "p", mode: str = "active", sequence: int = 1
) -> PoolScaling:
    return PoolScaling(
        pool=pool,
        epoch=epoch,
        sequence=sequence,
        at_s=0.0,  # its clock does not count
        mode=mode,
        actuator="embedded",
        target=1,
        kinds=[],
        removals=[],
        awake=list(awake),
        standby=1,
        start_s=90.0,
        wake_s=1.0,
    )


SILENCE_S = silence_s("r1")


def orders() -> StandbyOrders:
    return StandbyOrders("p", "r1", 100.0)


def test_it_joins_when_it_is_named() -> None:
    listening = orders()
    listening.apply_scaling(scaling("r2"), now_s=101.0)
    assert listening.join_reason(now_s=101.0) is None
    listening.apply_scaling(scaling("r2", "r1"), now_s=102.0)
    assert listening.join_reason(now_s=102.0) is JoinReason.ORDERED


def test_it_joins_when_nobody_scales_its_pool_and_not_sooner() -> None:
    listening = orders()
    assert listening.join_reason(now_s=100.0 + SILENCE_S - 0.01) is None
    assert listening.join_reason(now_s=100.0 + SILENCE_S) is JoinReason.SILENCE
    listening.apply_scaling(scaling(), now_s=110.0)
    assert listening.join_reason(now_s=110.0 + SILENCE_S - 0.01) is None
    assert listening.join_reason(now_s=110.0 + SILENCE_S) is JoinReason.SILENCE


def test_a_fleet_that_hears_nothing_does_not_join_in_one_instant() -> None:
    fleet = [StandbyOrders("p", f"p-host-{number}", 100.0) for number in range(1_000)]
    joined, counts = 0, []
    for second in range(101, 101 + int(SILENCE_S_MAX + JOIN_SPREAD_S)):
        now = sum(one.join_reason(now_s=float(second)) is JoinReason.SILENCE for one in fleet)
        counts.append(now - joined)
        joined = now
    assert joined == len(fleet)
    assert sum(counts[: int(SILENCE_S_MAX)]) == 0
    assert max(counts) <= 2 * len(fleet) / JOIN_SPREAD_S


def test_the_time_of_a_replica_does_not_depend_on_its_process() -> None:
    assert silence_s("r1") == pytest.approx(16.711534)


@pytest.mark.parametrize(
    "record",
    [
        scaling("r1", epoch=1),
        scaling("r1", epoch=2, pool="q"),
        scaling("r1", epoch=2, mode="observe"),
    ],
    ids=["lower epoch", "other pool", "dry run"],
)
def test_a_record_that_does_not_bind_its_pool_is_no_order_and_no_sign_of_life(
    record: PoolScaling,
) -> None:
    listening = orders()
    listening.apply_scaling(scaling(epoch=2), now_s=101.0)
    listening.apply_scaling(record, now_s=110.0)
    assert listening.join_reason(now_s=110.0) is None
    assert listening.join_reason(now_s=101.0 + SILENCE_S) is JoinReason.SILENCE


def test_an_order_of_an_owner_that_was_replaced_is_void() -> None:
    listening = orders()
    listening.apply_scaling(scaling("r1", epoch=3), now_s=101.0)
    listening.apply_scaling(scaling(epoch=4), now_s=101.0)
    assert listening.join_reason(now_s=101.0) is None


def test_a_new_autoscaler_has_time_to_decide_and_repeating_itself_gives_no_more() -> None:
    listening = orders()
    listening.apply_epoch(AutoscalerEpoch(7, "a", 0.0), now_s=110.0)
    listening.apply_epoch(AutoscalerEpoch(7, "a", 0.0), now_s=120.0)
    assert listening.join_reason(now_s=110.0 + SILENCE_S - 0.01) is None
    assert listening.join_reason(now_s=110.0 + SILENCE_S) is JoinReason.SILENCE
    listening.apply_scaling(scaling("r1", epoch=6), now_s=111.0 + SILENCE_S)
    assert listening.join_reason(now_s=111.0 + SILENCE_S) is JoinReason.SILENCE


def test_a_pool_that_is_paused_is_scaled() -> None:
    listening = orders()
    listening.apply_scaling(scaling(mode="paused"), now_s=112.0)
    assert listening.join_reason(now_s=116.0) is None


def received(value: bytes | None, headers: Headers) -> ReceivedRecord:
    return ReceivedRecord(SCALING.name, 0, 0, b"p", headers, value, 0)


def record_of(record: Record) -> ReceivedRecord:
    return received(encode(record), kind_headers(type(record)))


def test_records_of_the_topic_are_applied_and_others_are_skipped() -> None:
    listening = orders()
    records = [
        received(None, []),
        record_of(ScalingOverride("p", "paused")),
        received(b"?", kind_headers(PoolScaling)),
        received(b"?", []),
        record_of(AutoscalerEpoch(2, "a", 0.0)),
        record_of(scaling("r1", epoch=1)),
    ]
    apply_records(listening, records, now_s=110.0)
    assert listening.join_reason(now_s=110.0) is None
    apply_records(listening, [record_of(scaling("r1", epoch=2))], now_s=111.0)
    assert listening.join_reason(now_s=111.0) is JoinReason.ORDERED
    with pytest.raises(SchemaTooNewError):
        apply_records(
            listening, [received(b"", [("kind", b"pool_scaling"), ("schema", b"99")])], now_s=112.0
        )
