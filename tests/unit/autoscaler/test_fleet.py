"""Goal: what was ordered is matched with what comes: starts measured, orders not repeated."""

from collections import Counter

from autoscaler.loop.fleet import RESTORE_S, SPOT_RETRY_S, STUCK_MIN_S, Fleet, Kind
from autoscaler.ownership.pool_memory import SAMPLES_MAX, StartTimes, percentile_95
from autoscaler.policy.placement import Addition
from autoscaler.policy.signals import ReplicaState
from tests.support.scaling import NOW_S, replica

L4, SPOT = Kind("l4", "", False), Kind("l4", "a", True)
SETTLE_S = 200.0


def ordered(kind: Kind = L4, count: int = 1) -> Fleet:
    fleet = Fleet()
    fleet.advance((), NOW_S, SETTLE_S)
    additions = [Addition(**kind._asdict())] * count
    fleet.order(Counter({kind: count}), additions, (), 0, NOW_S)
    return fleet


def states(fleet: Fleet, seen: object = (), at_s: float = NOW_S) -> list[ReplicaState]:
    return [one.state for one in fleet.advance(seen, at_s, SETTLE_S)]  # type: ignore[arg-type]


def test_an_ordered_replica_counts_until_it_had_time_to_come() -> None:
    fleet = ordered(count=2)
    assert states(fleet, (), NOW_S + 199) == [ReplicaState.STARTING] * 2
    assert states(fleet, (), NOW_S + 200) == []


def test_starts_are_measured_by_the_oldest_order_of_the_kind() -> None:
    fleet = ordered(count=2)
    starting = replica(1, ReplicaState.STARTING)
    assert len(states(fleet, [starting], NOW_S + 10)) == 2
    assert fleet.waking_since_s == NOW_S
    assert len(states(fleet, [replica(1)], NOW_S + 40)) == 2
    assert fleet.times.p95_s() == {"l4": 40.0}
    states(fleet, [replica(1), replica(2)], NOW_S + 55)
    assert fleet.times.starts_s == {"l4": (40.0, 55.0)}
    assert fleet.waking_since_s == 0
    assert fleet.is_carried_out()


def test_replicas_that_nobody_ordered_measure_nothing() -> None:
    fleet = ordered()
    foreign = replica(1, gpu_type="h100")
    assert len(states(fleet, [foreign], NOW_S + 1)) == 2
    assert fleet.times.p95_s() == {}


def test_a_wake_is_measured_apart() -> None:
    fleet = Fleet()
    states(fleet, [replica(1, ReplicaState.ASLEEP)])
    wake = Addition(gpu_type="l4", zone="", wake_replica_id="r0001")
    fleet.order(Counter({L4: 1}), [wake], (), 0, NOW_S)
    assert states(fleet, [replica(1, ReplicaState.ASLEEP)], NOW_S + 1) == [ReplicaState.STARTING]
    states(fleet, [replica(1)], NOW_S + 1.5)
    assert fleet.times == StartTimes(wakes_s=(1.5,))
    assert list(fleet.awake) == ["r0001"]
    states(fleet, (), NOW_S + 20)
    assert fleet.awake == {}


def test_a_spot_replica_that_does_not_come_makes_its_offer_unavailable() -> None:
    fleet = ordered(SPOT)
    states(fleet, (), NOW_S + SETTLE_S)
    assert fleet.unavailable_spot == {("l4", "a"): NOW_S + SETTLE_S + SPOT_RETRY_S}
    states(fleet, (), NOW_S + SETTLE_S + SPOT_RETRY_S)
    assert fleet.unavailable_spot == {}


def test_removed_replicas_drain_until_the_platform_ended_one_of_the_kind() -> None:
    fleet = Fleet()
    seen = [replica(1), replica(2)]
    states(fleet, seen)
    fleet.order(Counter({L4: 1}), (), ["r0001"], 0, NOW_S)
    assert states(fleet, seen, NOW_S + 1) == [ReplicaState.DRAINING, ReplicaState.WARM]
    assert fleet.removing == ["r0001"]
    assert states(fleet, [seen[0]], NOW_S + 2) == [ReplicaState.WARM]  # it ended the other one
    assert fleet.removing == []


def test_a_successor_counts_ordered_replicas_that_it_did_not_hear_yet() -> None:
    fleet = Fleet()
    fleet.restore({L4: 3}, {}, (), (), NOW_S)
    assert len(states(fleet, (), NOW_S + 1)) == 3
    assert len(states(fleet, [replica(1), replica(2)], NOW_S + 2)) == 3
    assert len(states(fleet, [replica(1), replica(2)], NOW_S + RESTORE_S)) == 2
    assert fleet.times.p95_s() == {}


def test_a_replica_that_ended_by_itself_is_expected_again_and_not_measured() -> None:
    fleet = Fleet()
    fleet.restore({L4: 1}, {}, (), (), NOW_S - 100)
    states(fleet, [replica(1)])
    assert states(fleet, (), NOW_S + 11) == [ReplicaState.STARTING]
    states(fleet, [replica(2)], NOW_S + 20)
    assert fleet.times.p95_s() == {}
    assert fleet.waking_since_s == 0


def test_the_percentile_is_of_the_last_fifty() -> None:
    times = StartTimes()
    for seconds in range(SAMPLES_MAX + 100):
        times = times.with_start("l4", float(seconds))
    assert len(times.starts_s["l4"]) == SAMPLES_MAX
    assert times.p95_s() == {"l4": 147.0}
    assert percentile_95((5.0,)) == 5.0


def test_a_start_that_takes_longer_than_it_should_is_learned() -> None:
    fleet = ordered()
    states(fleet, [replica(1, ReplicaState.STARTING)], NOW_S + 10)
    states(fleet, [replica(1, ReplicaState.STARTING)], NOW_S + SETTLE_S + 50)
    states(fleet, [replica(1)], NOW_S + SETTLE_S + 100)
    assert fleet.times.p95_s() == {"l4": SETTLE_S + 100}


def test_a_replica_that_never_becomes_ready_is_no_capacity_and_is_to_end() -> None:
    fleet = ordered()
    starting = [replica(1, ReplicaState.STARTING)]
    assert states(fleet, starting, NOW_S + 5) == [ReplicaState.STARTING]
    assert states(fleet, starting, NOW_S + STUCK_MIN_S - 1) == [ReplicaState.STARTING]
    assert states(fleet, starting, NOW_S + STUCK_MIN_S) == [ReplicaState.DRAINING]
    assert (fleet.removing, fleet.stuck, fleet.waking_since_s) == (["r0001"], {L4: 1}, 0)
    fleet.order(Counter(), (), (), 0, NOW_S + STUCK_MIN_S)
    states(fleet, starting, NOW_S + 2 * STUCK_MIN_S)
    assert fleet.removing == ["r0001"]  # until it has ended
    assert states(fleet, (), NOW_S + 2 * STUCK_MIN_S + 1) == []
    assert (fleet.removing, fleet.stuck) == ([], {})


def test_a_woken_replica_that_stays_asleep_is_no_capacity_and_is_to_end() -> None:
    fleet = Fleet()
    asleep = [replica(1, ReplicaState.ASLEEP)]
    states(fleet, asleep)
    wake = Addition(gpu_type="l4", zone="", wake_replica_id="r0001")
    fleet.order(Counter({L4: 1}), [wake], (), 0, NOW_S)
    assert fleet.asleep == 1
    assert states(fleet, asleep, NOW_S + SETTLE_S - 1) == [ReplicaState.STARTING]
    assert states(fleet, asleep, NOW_S + SETTLE_S) == [ReplicaState.DRAINING]
    assert fleet.removing == ["r0001"]


def test_a_replica_that_drains_by_itself_is_named_when_its_kind_shrinks() -> None:
    fleet = Fleet()
    fleet.restore({L4: 2}, {}, (), (), NOW_S - 100)
    leaving = [replica(1, ReplicaState.DRAINING), replica(2)]
    states(fleet, leaving)
    fleet.order(Counter({L4: 2}), (), (), 0, NOW_S)
    assert fleet.removing == []
    fleet.order(Counter({L4: 1}), (), (), 0, NOW_S)
    states(fleet, leaving, NOW_S + 1)
    assert fleet.removing == ["r0001"]
    states(fleet, [replica(2)], NOW_S + 2)
    assert fleet.removing == []


def test_a_clock_that_goes_back_keeps_no_time_of_the_future() -> None:
    fleet = ordered(SPOT)
    states(fleet, (), NOW_S + 10)
    fleet.refuse_spot(replica(1, zone="b"), NOW_S)
    states(fleet, (), NOW_S - 86_400)
    assert fleet.open_starts[0].at_s == NOW_S - 86_400
    states(fleet, (), NOW_S - 86_400 + SPOT_RETRY_S)
    assert ("l4", "b") not in fleet.unavailable_spot


def test_woken_replicas_of_a_predecessor_that_are_not_seen_are_forgotten() -> None:
    fleet = Fleet()
    fleet.restore({L4: 1}, {"gone": NOW_S, "r0001": 0.0}, (), (), NOW_S)
    states(fleet, [replica(1)], NOW_S + RESTORE_S - 1)
    assert list(fleet.awake) == ["gone", "r0001"]
    states(fleet, [replica(1)], NOW_S + RESTORE_S)
    assert list(fleet.awake) == ["r0001"]


def test_thousands_of_lost_replicas_are_one_expected_start_and_are_matched() -> None:
    fleet = Fleet()
    fleet.restore({L4: 5_000}, {}, (), (), NOW_S - 100)
    states(fleet, [replica(number) for number in range(5_000)])
    assert states(fleet, (), NOW_S + 11) == [ReplicaState.STARTING] * 5_000
    assert [one.count for one in fleet.open_starts] == [5_000]
    new = [replica(number, ReplicaState.STARTING) for number in range(5_000, 8_000)]
    assert len(states(fleet, new, NOW_S + 20)) == 5_000
    assert fleet.open_starts[-1].count == 2_000
