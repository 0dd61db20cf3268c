"""Goal: the children of a stack follow absolute orders: idempotent, fenced and bounded."""

from dataclasses import replace

import msgspec
import pytest

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnknownPoolError,
)
from cli.stack.processes.child import Child
from cli.stack.replica_pools import REPLICAS_MAX, PoolReplica, ReplicaPools
from tests.support.supervised_children import SupervisedStack, role


class ScaledStack:
    """Pools `a` and `b` on scripted processes."""

    def __init__(self, stops_in_s: float = 1.0) -> None:
        self.stack = SupervisedStack(stops_in_s=lambda child: stops_in_s)
        self.made: list[PoolReplica] = []
        self.envs: dict[int, dict[str, str]] = {}  # of the newest process, by slot
        self.pools = ReplicaPools(self.stack.supervisor, self.child, ["a", "b"])
        self.stack.supervisor.repeat_task(self.pools.reconcile)

    def child(self, replica: PoolReplica) -> Child:
        self.made.append(replica)
        self.start(replica)
        return replace(
            role(replica.name, role="gpu-consumer", drain_timeout_s=45.0),
            env_of_start=replica.env,
        )

    def start(self, replica: PoolReplica) -> None:
        """Make the variables of a process, as a real start does."""
        self.envs[replica.number] = replica.env()

    def order(self, *kinds: KindCount, pool: str = "a", **fields: object) -> PoolOrder:
        given = {"epoch": 1, "sequence": 1, **fields}
        return PoolOrder(pool=pool, kinds=kinds, **given)  # type: ignore[arg-type]

    def apply(self, replicas: int, *, pool: str = "a", **fields: object) -> None:
        self.pools.apply(self.order(KindCount(replicas=replicas), pool=pool, **fields))

    def run(self, seconds: float) -> None:
        until_s = self.stack.clock.now_s + seconds
        self.stack.supervisor.run(lambda: self.stack.clock.now_s >= until_s)

    def running(self, pool: str = "a") -> list[str]:
        """Names of the children of a pool that do not retire."""
        children = self.stack.supervisor.children("gpu-consumer")
        prefix = f"replica-{pool}-"
        return [c.name for c in children if c.name.startswith(prefix) and not c.is_retiring]

    def ids(self) -> list[str]:
        return [replica.replica_id for replica in self.pools.observe("a").replicas]


def test_an_order_is_absolute_and_a_repeated_one_changes_nothing() -> None:
    scaled = ScaledStack()

    for _ in range(3):
        scaled.apply(3)
        scaled.run(1)

    assert scaled.running() == ["replica-a-1", "replica-a-2", "replica-a-3"]
    assert len(scaled.stack.processes) == 3
    observed = scaled.pools.observe("a")
    assert observed.kinds == (KindCount(replicas=3),)
    assert observed.epoch == 1


def test_to_zero_and_back() -> None:
    scaled = ScaledStack()
    scaled.apply(2)

    scaled.apply(0, sequence=2)
    assert scaled.running() == []
    assert scaled.pools.observe("a").kinds == ()
    scaled.run(5)
    scaled.apply(1, sequence=3)

    assert scaled.running() == ["replica-a-1"]


def test_a_lower_epoch_and_an_older_order_are_refused() -> None:
    scaled = ScaledStack()
    scaled.apply(2, epoch=5, sequence=9)

    with pytest.raises(StaleEpochError, match="epoch 5"):
        scaled.apply(0, epoch=4, sequence=10)
    with pytest.raises(ActuatorConflictError, match="order 9"):
        scaled.apply(0, epoch=5, sequence=8)
    assert len(scaled.running()) == 2
    scaled.apply(1, epoch=6, sequence=1)

    assert len(scaled.running()) == 1


def test_epochs_are_kept_for_each_pool_also_at_zero() -> None:
    scaled = ScaledStack()
    scaled.apply(1, epoch=5)
    scaled.apply(0, epoch=5, sequence=2)
    scaled.run(60)
    scaled.apply(1, epoch=2, pool="b")

    with pytest.raises(StaleEpochError):
        scaled.apply(1, epoch=4, sequence=3)
    assert scaled.pools.observe("a").epoch == 5


def test_named_replicas_go_and_otherwise_the_newest() -> None:
    scaled = ScaledStack()
    scaled.apply(4)
    second = scaled.ids()[1]

    scaled.apply(3, sequence=2, removals=(second,))
    assert scaled.running() == ["replica-a-1", "replica-a-3", "replica-a-4"]
    scaled.apply(2, sequence=3)
    assert scaled.running() == ["replica-a-1", "replica-a-3"]
    scaled.apply(1, sequence=4, removals=("a-unknown-00000000",))
    assert scaled.running() == ["replica-a-1"]


def test_a_repeated_removal_ends_no_other_replica() -> None:
    scaled = ScaledStack(stops_in_s=30.0)
    scaled.apply(3)
    first = scaled.ids()[0]

    for _ in range(3):
        scaled.apply(2, sequence=2, removals=(first,))
        scaled.run(1)

    assert scaled.running() == ["replica-a-2", "replica-a-3"]


def test_a_replaced_replica_has_a_successor() -> None:
    scaled = ScaledStack(stops_in_s=30.0)
    scaled.apply(2)
    first = scaled.ids()[0]

    scaled.apply(2, sequence=2, removals=(first,))

    assert scaled.running() == ["replica-a-2", "replica-a-3"]
    assert first not in scaled.ids()


def test_kinds_are_changed_apart_and_reach_the_process() -> None:
    scaled = ScaledStack()
    spot = KindCount(gpu_type="h100", zone="z1", spot=True, replicas=1)
    scaled.pools.apply(scaled.order(KindCount(gpu_type="l4", replicas=2), spot))

    assert scaled.envs[1].items() >= {"MILLRACE_GPU_TYPE": "l4"}.items()
    assert "MILLRACE_GPU_SPOT" not in scaled.envs[1]
    assert "MILLRACE_GPU_ZONE" not in scaled.envs[1]
    assert (
        scaled.envs[3].items()
        >= {
            "MILLRACE_GPU_TYPE": "h100",
            "MILLRACE_GPU_ZONE": "z1",
            "MILLRACE_GPU_SPOT": "true",
        }.items()
    )
    scaled.pools.apply(scaled.order(KindCount(gpu_type="l4", replicas=1), spot, sequence=2))
    assert scaled.running() == ["replica-a-1", "replica-a-3"]


def test_an_addition_at_an_unchanged_warm_pool_refills_it() -> None:
    """The replica that slept is woken by the log; the new one takes its place."""
    scaled = ScaledStack()
    scaled.apply(1, standby=1)
    scaled.apply(2, standby=1, sequence=2)

    standby = [env.get("MILLRACE_GPU_STANDBY") for env in scaled.envs.values()]
    assert standby == ["true", "true"]

    scaled.apply(4, standby=1, sequence=3)  # one more is woken, one is added, one sleeps
    standby = [env.get("MILLRACE_GPU_STANDBY") for env in scaled.envs.values()]
    assert standby == ["true", "true", "true", None]


def test_the_replicas_of_the_warm_pool_start_in_standby() -> None:
    scaled = ScaledStack()
    scaled.apply(3, standby=2)
    standby = [env.get("MILLRACE_GPU_STANDBY") for env in scaled.envs.values()]
    assert standby == ["true", "true", None]

    scaled.apply(3, standby=1, sequence=2)  # one was woken
    scaled.apply(4, standby=2, sequence=3)  # and another takes its place

    assert scaled.envs[4]["MILLRACE_GPU_STANDBY"] == "true"
    scaled.start(scaled.made[0])
    assert "MILLRACE_GPU_STANDBY" not in scaled.envs[1]


def test_each_process_has_a_new_id_in_the_form_of_replicas() -> None:
    scaled = ScaledStack()
    scaled.apply(2)
    before = scaled.ids()
    assert len(set(before)) == 2
    assert all(one.startswith("a-") and len(one.rpartition("-")[2]) == 8 for one in before)

    scaled.start(scaled.made[0])  # as after a crash

    after = scaled.ids()
    assert after[0] not in before
    assert after[1] == before[1]
    scaled.apply(1, sequence=2, removals=(after[0],))
    assert scaled.running() == ["replica-a-2"]


def test_a_replica_that_crashes_exists_and_its_restarts_are_told() -> None:
    scaled = ScaledStack()
    scaled.apply(1)

    for _ in range(3):
        scaled.stack.end_newest()
        scaled.stack.seconds_until_restart()

    (replica,) = scaled.pools.observe("a").replicas
    assert replica.restarts == 3
    assert scaled.running() == ["replica-a-1"]


def test_a_stack_has_at_most_64_replicas_over_all_pools() -> None:
    scaled = ScaledStack()
    scaled.apply(40)

    with pytest.raises(ActuatorDeniedError, match="at most 64"):
        scaled.apply(25, pool="b")
    assert scaled.running("b") == []
    scaled.apply(24, pool="b")
    assert len(scaled.running("a") + scaled.running("b")) == REPLICAS_MAX


def test_replicas_start_only_as_slots_become_free() -> None:
    scaled = ScaledStack(stops_in_s=30.0)
    scaled.apply(REPLICAS_MAX)
    scaled.apply(0, sequence=2)

    scaled.apply(2, pool="b")
    assert scaled.running("b") == []
    assert scaled.pools.observe("b").kinds == (KindCount(replicas=2),)
    scaled.run(35)

    assert scaled.running("b") == ["replica-b-1", "replica-b-2"]


@pytest.mark.parametrize("pool", ["", "c", "a-1"])
def test_a_pool_of_another_stack_is_refused(pool: str) -> None:
    scaled = ScaledStack()

    with pytest.raises(UnknownPoolError, match="not one of this stack"):
        scaled.apply(1, pool=pool)
    with pytest.raises(UnknownPoolError, match="not one of this stack"):
        scaled.pools.observe(pool)


def test_an_order_with_a_negative_number_is_refused() -> None:
    scaled = ScaledStack()
    kinds = (KindCount(replicas=-1), KindCount(gpu_type="l4", replicas=3))

    with pytest.raises(ActuatorDeniedError, match="negative"):
        scaled.pools.apply(scaled.order(*kinds))
    assert scaled.running() == []


def test_an_answer_is_small_enough_for_its_line() -> None:
    scaled = ScaledStack()
    scaled.pools.apply(
        scaled.order(
            *(KindCount(gpu_type=f"{n:063}", zone="z" * 63, replicas=1) for n in range(64))
        )
    )

    assert len(msgspec.json.encode(scaled.pools.observe("a"))) < 64 * 1024
