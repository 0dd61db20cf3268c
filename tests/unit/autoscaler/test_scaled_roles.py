"""Goal: roles are scaled by their load, one order for each role, and nothing on missing data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.policy.role_need import ROLE_PARTITIONS, Role, role_key, role_of_key
from autoscaler.signals.group_lags import GroupLags, GroupLoad, GroupReading, group_load
from tests.support.autoscaler_world import AutoscalerWorld
from tests.support.clock import ManualClock
from tests.support.scaling import NOW_S
from topics.errors import KafkaUnavailableError
from topics.records.scaling import DecisionEntry, ScalingOverride

CLUSTER = """
[actuators.memory]
kind = "kubernetes"
"""
API, INTAKE, WRITER = map(role_key, (Role.API, Role.INTAKE, Role.RESULTS_WRITER))


def table(role: Role, most: int = 8, mode: str = "active") -> str:
    return f"{CLUSTER}[roles.{role}]\nmode = '{mode}'\ntarget_per_s = 100\nreplicas_max = {most}\n"


def group(members: int, per_s: float, waiting: float) -> GroupLoad:
    return GroupLoad(NOW_S, members, per_s, waiting)


def targets(world: AutoscalerWorld, key: str) -> list[int]:
    return [one.replicas for one in world.actuator.orders if one.pool == key]


def test_a_name_is_that_of_a_role_or_of_a_pool() -> None:
    assert [role_of_key(role_key(role)) for role in Role] == list(Role)
    for name in ("api", "role:", "role:gpu", "role:api:", "", "roles:api", "role"):
        assert role_of_key(name) is None


async def test_a_role_is_raised_at_once_by_its_rate_and_lowered_slowly() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.run_processes(Role.API, 1, work_per_s=390.0)
    await world.advance(5)
    assert targets(world, API) == [4]

    world.run_processes(Role.API, 4, work_per_s=390.0)
    await world.advance(60)
    assert targets(world, API) == [4]
    world.run_processes(Role.API, 4, work_per_s=10.0)
    await world.advance(200)
    assert targets(world, API) == [4]  # the highest need of 300 s
    await world.advance(160)
    world.run_processes(Role.API, 3, work_per_s=10.0)
    await world.advance(40)
    assert targets(world, API)[:3] == [4, 3, 2]


async def test_each_role_without_a_table_stays_as_it_is() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.run_processes(Role.INTAKE, 1, work_per_s=5_000.0)
    world.groups[Role.RESULTS_WRITER] = group(1, 100.0, 1e6)
    await world.advance(10)
    assert world.actuator.orders == []


async def test_what_waits_for_intake_is_counted_once_for_all_processes() -> None:
    world = AutoscalerWorld(table(Role.INTAKE))
    world.run_processes(Role.INTAKE, 3, waiting=2_900.0)
    await world.advance(10)
    assert targets(world, INTAKE) == [3]  # 2,900 / (100 × 10 s)


@pytest.mark.parametrize("role", ROLE_PARTITIONS)
async def test_a_lag_raises_a_role_and_never_above_its_partitions(role: Role) -> None:
    world = AutoscalerWorld(table(role, ROLE_PARTITIONS[role]))
    world.groups[role] = group(1, 50.0, 2_400.0)
    await world.advance(5)
    assert targets(world, role_key(role)) == [3]  # 50/100 + 2,400 / (100 × 10 s), rounded up
    world.groups[role] = group(3, 300.0, 1e9)
    await world.advance(5)
    assert targets(world, role_key(role)) == [3, ROLE_PARTITIONS[role]]


async def test_a_group_without_members_gets_processes_for_its_lag() -> None:
    world = AutoscalerWorld(table(Role.RESULTS_WRITER))
    world.groups[Role.RESULTS_WRITER] = group(0, 0.0, 1_500.0)
    await world.advance(5)
    assert targets(world, WRITER) == [2]


async def test_nothing_is_ordered_before_a_role_was_heard() -> None:
    world = AutoscalerWorld(table(Role.API))
    await world.advance(30)
    assert world.actuator.orders == []
    assert world.sent.records == []


@pytest.mark.parametrize("role", [Role.API, Role.RESULTS_WRITER])
async def test_a_role_that_falls_silent_keeps_its_number(role: Role) -> None:
    world = AutoscalerWorld(table(role))
    world.run_processes(Role.API, 4, work_per_s=390.0)
    world.groups[Role.RESULTS_WRITER] = group(4, 390.0, 0.0)
    await world.advance(10)
    world.silent |= {"loads", "groups"}
    await world.advance(900)

    assert targets(world, role_key(role))[0] == 4
    assert set(targets(world, role_key(role))) == {4}
    assert world.state(role_key(role)).target == 4


async def test_a_successor_that_hears_nothing_keeps_the_number() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.run_processes(Role.API, 4, work_per_s=390.0)
    await world.advance(10)
    after = world.successor()
    after.silent.add("loads")
    await after.advance(200)

    assert after.state(API).epoch == 2
    assert {(one.pool, one.replicas) for one in after.actuator.orders} == {(API, 4)}


async def test_observe_decides_and_orders_nothing() -> None:
    world = AutoscalerWorld(table(Role.API, mode="observe"))
    world.run_processes(Role.API, 1, work_per_s=390.0)
    await world.advance(10)

    assert world.actuator.orders == []
    assert (world.state(API).mode, world.state(API).target) == ("observe", 4)
    (entry,) = {one.pool: one for one in world.records(DecisionEntry)}.values()
    assert (entry.pool, entry.applied) == (API, False)


async def test_an_operator_pauses_a_role_or_sets_its_number() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.run_processes(Role.API, 2, work_per_s=190.0)
    await world.advance(5)
    world.owner.log.overrides[API] = ScalingOverride(pool=API, mode="set", replicas=7)
    await world.advance(5)
    assert targets(world, API) == [2, 7]
    world.owner.log.overrides[API] = ScalingOverride(pool=API, mode="paused")
    world.run_processes(Role.API, 7, work_per_s=790.0)
    await world.advance(20)
    assert targets(world, API) == [2, 7]
    assert world.state(API).mode == "paused"


async def test_a_replica_does_not_pose_as_a_role() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.start_replica("r", pool=API)
    await world.advance(10)
    assert world.actuator.orders == []


def test_a_rate_is_measured_over_two_readings_and_offsets_set_back_count_nothing() -> None:
    first = GroupReading(10.0, {0: (100, 100), 1: (500, 600)}, 1)
    last = GroupReading(20.0, {0: (150, 400), 1: (20, 600), 2: (7, 9)}, 2)
    assert group_load(first, last) == GroupLoad(20.0, 2, 5.0, 250.0 + 580.0 + 2.0)
    assert group_load(first, first) is None


@pytest.mark.parametrize(
    ("per_s", "waiting", "lag_s"), [(50.0, 100.0, 2.0), (0.0, 0.0, 0.0), (0.0, 1.0, float("inf"))]
)
def test_a_lag_in_seconds_is_what_waits_by_the_rate(
    per_s: float, waiting: float, lag_s: float
) -> None:
    assert group(1, per_s, waiting).lag_s == lag_s


def test_a_broker_that_does_not_answer_leaves_the_last_load_with_its_age() -> None:
    clock, fails, offset = ManualClock(NOW_S), False, 0

    def read(role: Role) -> GroupReading:
        if fails:
            raise KafkaUnavailableError("no answer")
        return GroupReading(clock.wall_s(), {0: (offset, 1_000_000)}, 2)

    lags = GroupLags(read, lambda: {Role.BATCHER, Role.API}, clock.monotonic_s)
    for _ in range(20):
        lags.run_once()
        clock.advance(2)
        offset += 60
    known = lags.loads[Role.BATCHER]
    assert (known.records_per_s, known.members) == (30.0, 2)
    fails = True
    lags.run_once()
    assert lags.loads == {Role.BATCHER: known}
    assert clock.wall_s() - known.at_s == 2.0


def test_a_role_that_is_no_longer_scaled_is_not_read() -> None:
    clock, wanted, reads = ManualClock(NOW_S), {Role.BATCHER}, 0

    def read(role: Role) -> GroupReading:
        nonlocal reads
        reads += 1
        return GroupReading(clock.wall_s(), {0: (0, 0)}, 1)

    lags = GroupLags(read, lambda: wanted, clock.monotonic_s)
    for _ in range(2):
        lags.run_once()
        clock.advance(2)
    assert lags.loads
    wanted.clear()
    lags.run_once()
    assert (lags.loads, reads) == ({}, 2)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.floats(0, 1e9), st.floats(0, 1e12), st.integers(1, 40)),
        min_size=1,
        max_size=12,
    )
)
async def test_each_order_is_within_the_bounds_and_the_partitions(
    phases: list[tuple[int, float, float, int]],
) -> None:
    world = AutoscalerWorld(table(Role.RESULTS_WRITER, 6))
    for members, per_s, waiting, seconds in phases:
        world.groups[Role.RESULTS_WRITER] = group(members, per_s, waiting)
        await world.advance(seconds)
    assert all(1 <= count <= 6 for count in targets(world, WRITER))


async def test_an_operator_sets_a_role_that_was_never_heard() -> None:
    world = AutoscalerWorld(table(Role.API))
    world.owner.log.apply(ScalingOverride(pool=API, mode="set", replicas=3))
    await world.advance(5)
    world.owner.log.apply(ScalingOverride(pool=API, mode="set", replicas=99))
    await world.advance(2)
    world.owner.log.apply(ScalingOverride(pool=API, mode="set", replicas=2))
    await world.advance(2)
    assert targets(world, API) == [3, 8, 2]  # 8: the maximum of the policy
