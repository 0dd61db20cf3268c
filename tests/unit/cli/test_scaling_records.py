"""Goal: the newest state of scaling is what counts, and orders stay within the bounds."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.scaling_step import decide
from cli.admin.scale_log_commands import (
    OverrideRefusedError,
    checked_override,
    history_row,
    status_row,
)
from cli.admin.scaling_records import (
    NoDecisionError,
    ScalingRecords,
    UnreadableDecisionError,
    decision_of,
)
from core.errors import SchemaTooNewError
from tests.support.scaling import NOW_S, rules_of, signals_of, warm
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Record
from topics.records.scaling import (
    OVERRIDE_KEY,
    AutoscalerEpoch,
    DecisionEntry,
    PoolScaling,
    ScalingOverride,
)

DECISION, _ = decide(
    rules_of(min_replicas=1, max_replicas=9), signals_of(3000.0, warm(2)), first_history(NOW_S, 2),
    NOW_S,
)  # fmt: skip


def scaling(pool: str = "chat", **fields: Any) -> PoolScaling:
    given: dict[str, Any] = {
        "epoch": 3,
        "sequence": 1,
        "at_s": NOW_S,
        "mode": "active",
        "actuator": "embedded",
        "target": 4,
        "kinds": [],
        "removals": [],
        "awake": [],
        "standby": 1,
        "start_s": 20.0,
        "wake_s": 1.0,
        "decision": msgspec.json.encode(DECISION),
    } | fields
    return PoolScaling(pool=pool, **given)


def received(key: str, record: Record | None, headers: Any = None) -> ReceivedRecord:
    value = None if record is None else encode(record)
    found = headers or ([] if record is None else kind_headers(type(record)))
    return ReceivedRecord("scaling", 0, 0, key.encode(), found, value, 0)


def log_of(*records: ReceivedRecord) -> ScalingRecords:
    log = ScalingRecords()
    log.add(records)
    return log


def override(mode: str = "set", **fields: Any) -> ScalingOverride:
    return ScalingOverride(pool="chat", mode=mode, **fields)


def test_the_last_record_of_a_key_counts_and_a_lower_epoch_never() -> None:
    log = log_of(
        received("epoch", AutoscalerEpoch(epoch=3, owner_id="a", at_s=NOW_S)),
        received("chat", scaling(target=4)),
        received("chat", scaling(target=5, sequence=2)),
        received("chat", scaling(target=9, epoch=2)),
        received("old", scaling("old")),
        received("old", None),
    )

    assert log.pool("chat").target == 5
    assert log.epoch is not None
    assert log.epoch.epoch == 3
    with pytest.raises(NoDecisionError, match="'old'; it has: chat"):
        log.pool("old")


def test_an_override_is_in_force_until_its_time_a_resume_or_its_removal() -> None:
    key = f"{OVERRIDE_KEY}chat"
    log = log_of(received(key, override(replicas=2, until_s=NOW_S + 10)))

    assert log.override("chat", NOW_S) == override(replicas=2, until_s=NOW_S + 10)
    assert log.override("chat", NOW_S + 10) is None
    log.add([received(key, override(""))])
    assert log.override("chat", NOW_S) is None
    log.add([received(key, override("paused")), received(key, None)])
    assert log.override("chat", NOW_S) is None


def test_a_record_of_a_newer_release_is_an_error_and_not_left_out() -> None:
    with pytest.raises(SchemaTooNewError):
        log_of(received("chat", scaling(), headers=[("kind", b"pool_scaling"), ("schema", b"99")]))


@pytest.mark.parametrize(
    "refused",
    [
        override(replicas=0),
        override(replicas=10),
        override("paused", until_s=NOW_S - 1),
        override("paused", reason="x" * 201),
        override("paused", reason="a\nb"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(refused: ScalingOverride) -> None:
    with pytest.raises(OverrideRefusedError):
        checked_override(log_of(received("chat", scaling())), refused, NOW_S)


def test_orders_within_the_bounds_are_accepted_and_unknown_pools_are_not() -> None:
    log = log_of(received("chat", scaling()))

    for order in (override(replicas=1), override(replicas=9), override("paused"), override("")):
        assert checked_override(log, order, NOW_S) == order
    with pytest.raises(NoDecisionError):
        checked_override(ScalingRecords(), override("paused"), NOW_S)


def test_a_pool_without_a_decision_and_garbage_are_named() -> None:
    with pytest.raises(NoDecisionError):
        decision_of(b"", "chat")
    with pytest.raises(UnreadableDecisionError):
        decision_of(b"{]", "chat")


def test_a_record_that_is_old_is_shown_as_silent() -> None:
    log = log_of(
        received("chat", scaling()),
        received(f"{OVERRIDE_KEY}chat", override("paused", by="ann", reason="a test")),
    )

    row = status_row(log, log.pool("chat"), NOW_S + 16)
    assert row[-2:] == ("16 s, silent", "paused by ann: a test")
    assert status_row(log, log.pool("chat"), NOW_S + 5)[-2] == "5 s"


def test_a_number_is_accepted_for_a_pool_whose_inputs_never_gave_a_decision() -> None:
    log, order = log_of(received("chat", scaling(decision=b""))), override(replicas=5)

    assert checked_override(log, order, NOW_S) == order  # the autoscaler bounds it


def test_a_row_of_the_history_tells_the_change_of_the_warm_pool() -> None:
    decision = replace(DECISION, asleep=1, standby=3)
    entry = DecisionEntry(pool="chat", epoch=1, at_s=NOW_S, applied=True, decision=b"")

    assert history_row(entry, decision)[1:3] == ("2 -> 4", "1 -> 3")
