"""The decision loop on a fake clock: records go in, orders and records come out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from autoscaler.actuators.actuator import PoolOrder
from autoscaler.loop.decision_loop import DecisionLoop
from autoscaler.loop.loop_deps import LoopDeps
from autoscaler.loop.scaling_writer import ScalingWriter
from autoscaler.ownership.scaling_log import ScalingLog
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import read_policies
from autoscaler.policy.role_need import Role
from autoscaler.signals.group_lags import GroupLoad
from autoscaler.signals.role_signals import role_signals
from autoscaler.signals.signal_store import SignalStore
from autoscaler.signals.topic_inputs import decoded
from tests.support.clock import ManualClock
from tests.support.memory_actuator import MemoryActuator
from tests.support.recording_sender import SentRecords
from tests.support.scaling import NOW_S
from topics.records.catalogue import SCALING, SCALING_DECISIONS
from topics.records.codec import Headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, Demand, DemandTokens, Record
from topics.records.scaling import (
    Backlog,
    BacklogBucket,
    DecisionEntry,
    PoolScaling,
    RoleLoad,
)

POOL = "chat"
L4 = """
[gpu_types.l4]
memory_gib = 24
cost_per_hour = 1.0
throughput = [[8, 1000.0]]
quota = 40
[defaults]
gpu_types = ["l4"]
"""


class WaitedRecords(SentRecords):
    """Acknowledges each record at once."""

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.send(topic, value, partition=partition, key=key, headers=headers)


@dataclass
class FakeOwner:
    """An ownership that the test gives and takes."""

    epoch: int | None = 1
    log: ScalingLog = field(default_factory=ScalingLog)
    refused: list[int] = field(default_factory=list)

    @property
    def pools(self) -> Mapping[str, PoolScaling]:
        return dict(self.log.pools)

    @property
    def overrides(self) -> Mapping[str, Any]:
        return dict(self.log.overrides)

    def abandon(self, refused_epoch: int) -> None:
        self.epoch = None
        self.refused.append(refused_epoch)


class AutoscalerWorld:
    """One autoscaler, its clock, and what publishes for it each second."""

    def __init__(self, policies: str = L4, *, actuator: MemoryActuator | None = None) -> None:
        self.clock = ManualClock(NOW_S)
        self.owner = FakeOwner()
        self.store = SignalStore()
        self.sent = WaitedRecords()
        self.actuator = actuator or MemoryActuator()
        self.policies: Policies = read_policies(policies.encode(), "test.toml")
        self.live: dict[str, Capacity] = {}
        self.demands: dict[str, DemandTokens] = {}
        self.backlogs: dict[str, list[BacklogBucket]] = {}
        self.loads: dict[str, RoleLoad] = {}  # by process
        self.groups: dict[Role, GroupLoad] = {}  # read each second, like the rest
        self.silent: set[str] = set()
        self.loop = DecisionLoop(
            LoopDeps(
                owner=self.owner,
                store=self.store,
                writer=ScalingWriter(self.sent),
                policies=lambda: self.policies,
                actuators=lambda: {"memory": self.actuator},
                actuator_name=lambda _policies, _pool: "memory",
                is_caught_up=lambda: True,
                clock=self.clock,
                role_signals=lambda role, now_s: role_signals(
                    role, self.store.backlog, self.groups, now_s
                ),
            )
        )

    def publish(self) -> None:
        """Publish the state of all that is not silent."""
        now_s = self.clock.wall_s()
        if "capacity" not in self.silent:
            self.store.record(self.live.values(), now_s)
        if "demand" not in self.silent:
            demand = Demand("b1", "interactive", {}, now_s=now_s, pools=dict(self.demands))
            self.store.record([demand], now_s)
        if "loads" not in self.silent:
            loads = [replace(one, at_s=now_s) for one in self.loads.values()]
            self.store.record(loads, now_s)
        if "groups" not in self.silent:
            self.groups = {role: one._replace(at_s=now_s) for role, one in self.groups.items()}
        if "backlog" not in self.silent:
            self.store.record(
                [
                    Backlog(intake_id="i1", pool=pool, at_s=now_s, epoch=1, buckets=buckets)
                    for pool, buckets in self.backlogs.items()
                ],
                now_s,
            )

    async def advance(self, seconds: int) -> None:
        """Publish and decide each second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.publish()
            await self.loop.run_once()
            for _ in range(5):  # let orders be written and carried out
                await asyncio.sleep(0)

    def start_replica(self, replica_id: str, lifecycle: str = "warm", **fields: Any) -> None:
        self.live[replica_id] = capacity_of(replica_id, lifecycle=lifecycle, **fields)

    def start_ordered(self, pool: str = POOL, lifecycle: str = "warm") -> None:
        """Start what the newest order lacks; end the replicas that it removes."""
        order = self.actuator.newest(pool)
        assert order is not None
        for gone in order.removals:
            self.live.pop(gone, None)
        for kind in order.kinds:
            same = [
                one
                for one in self.live.values()
                if one.pool == pool and (one.gpu_type, one.zone) == (kind.gpu_type, kind.zone)
            ]
            for number in range(kind.replicas - len(same)):
                name = f"{pool}-{kind.gpu_type}-{kind.zone}-{len(self.live)}-{number}"
                self.start_replica(
                    name, lifecycle, pool=pool, gpu_type=kind.gpu_type, zone=kind.zone
                )

    def run_processes(self, role: Role, count: int, **fields: float) -> None:
        """Let so many processes of a role share its work and what waits."""
        self.loads = {name: one for name, one in self.loads.items() if one.role != role}
        shared = {"work_per_s": 0.0} | fields
        if role is Role.API:  # each reports its own; of intake, each reports that of all
            shared["waiting"] = shared.get("waiting", 0.0) / count
        shared["work_per_s"] /= count
        for number in range(count):
            name = f"{role}-{number}"
            self.loads[name] = RoleLoad(role=role, process_id=name, at_s=0.0, **shared)

    def records(self, kind: type[Record]) -> list[Any]:
        """Return the records of a kind that were written."""
        topic = {PoolScaling: SCALING, DecisionEntry: SCALING_DECISIONS}[kind]
        received = [
            ReceivedRecord(one.topic, 0, number, one.key, one.headers, one.value, 0)
            for number, one in enumerate(self.sent.records)
            if one.topic == topic.name
        ]
        return [one for one in decoded(received, topic.records) if isinstance(one, kind)]

    def state(self, pool: str = POOL) -> PoolScaling:
        found: PoolScaling = [one for one in self.records(PoolScaling) if one.pool == pool][-1]
        return found

    def successor(self) -> "AutoscalerWorld":
        """Return the autoscaler that takes over, with the same platform and the next epoch."""
        after = AutoscalerWorld(L4, actuator=self.actuator)
        after.policies, after.clock.now_s = self.policies, self.clock.now_s
        after.live, after.demands, after.backlogs = self.live, self.demands, self.backlogs
        after.loads, after.groups = self.loads, self.groups
        for record in self.records(PoolScaling):
            after.owner.log.apply(record)
        after.owner.epoch = (self.owner.epoch or 0) + 1
        return after


async def busy_world(policies: str = L4, *, tokens: float = 4_000_000.0) -> AutoscalerWorld:
    """A pool whose bulk job, of an hour, needs some replicas, which run."""
    world = AutoscalerWorld(policies)
    world.backlogs[POOL] = [bulk_of(tokens, NOW_S + 3_700)]
    await world.advance(5)
    world.start_ordered()
    await world.advance(2)
    return world


def capacity_of(replica_id: str, **fields: Any) -> Capacity:
    given: dict[str, Any] = {
        "replica_id": replica_id,
        "epoch": 1,
        "pool": POOL,
        "job_class": "bulk",
        "partitions": [],
        "granted": {},
        "items_per_s": 1.0,
        "concurrency": 8,
        "gpu_type": "l4",
        "tokens_per_s": 1000.0,
    } | fields
    return Capacity(**given)


def demand_of(waiting: float = 0.0, arrived: float = 0.0, items: int = 0) -> DemandTokens:
    """Demand of prompt tokens alone, so that no weight counts."""
    return DemandTokens(
        prompt_tokens=waiting,
        output_tokens=0.0,
        arrived_items=items,
        arrived_prompt_tokens=arrived,
        arrived_output_tokens=0.0,
    )


def bulk_of(tokens: float, deadline_s: float, endpoint: str = "/v1/completions") -> BacklogBucket:
    return BacklogBucket(
        deadline_s=deadline_s, endpoint=endpoint, items=10, prompt_tokens=tokens, output_tokens=0.0
    )


def backlog_of(pool: str, *buckets: BacklogBucket, at_s: float = NOW_S) -> Backlog:
    return Backlog(intake_id="i1", pool=pool, at_s=at_s, epoch=1, buckets=list(buckets))


def replicas(order: PoolOrder | None) -> int:
    assert order is not None
    return order.replicas
