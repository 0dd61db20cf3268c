"""P16: a pool is scaled through kills of autoscalers, of the broker and of draining replicas.

Clients create jobs and send calls. Meanwhile an operator sets the number of replicas again and
again, each time beside a fault of the seed's plan, and each replica that is removed is killed while
it drains. 1. Work wakes the pool from zero. 2. The plan runs. 3. Removals go on until enough
replicas were killed. 4. The clients end, all work must end well, and the pool must go to zero.
"""

import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.background_threads import background_threads
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.scaling_measures import (
    OwnerEnd,
    Recovery,
    measure_attempts,
    measure_orders,
    measure_recoveries,
)
from chaos.errors import DrillError
from chaos.faults.drain_killer import DELAY_S_MAX, DrainKiller, running_replicas
from chaos.faults.processes import kill_service, send_signal
from chaos.installations.autoscalers import Autoscalers, second_autoscaler
from chaos.installations.scaling_relay import RelayFault, ScalingRelay
from chaos.measures import Measure, duration
from chaos.observations import database
from chaos.observations.scaled_pool import ScaledPoolWatch
from chaos.verification.acknowledged import DurableCalls, check_calls
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from cli.admin.scaling_records import write_override
from cli.stack.scaling_socket import FILE_NAME
from cli.stack.served_models import served_model
from topics.errors import DeliveryError
from topics.records.scaling import ScalingOverride

POOL: Final = served_model(MODEL, "simulated", None).pool
REPLICAS_MAX: Final = 6
POLICIES: Final = f"""\
[defaults]
replicas_min = 0
replicas_max = {REPLICAS_MAX}
idle_s = 5
"""
LATENCY_MS: Final = 500
CONCURRENCY: Final = 16

KILLED: Final = "kill"
HELD: Final = "kill between state and order"
PAUSED: Final = "pause"
BROKER: Final = "broker-kill"
SOCKET_FAULTS: Final[dict[str, RelayFault]] = {
    "socket closed": "closed",
    "socket hangs": "hang",
    "socket answers garbage": "garbage",
    "socket loses answers": "lost-answer",
}
OWNER_FAULTS: Final = (KILLED, HELD, PAUSED)
FAULTS: Final = (*OWNER_FAULTS, BROKER, *SOCKET_FAULTS)

DRAIN_KILLS: Final = (50, 6)
"""Of a long round and of a quick one."""

TARGET_S_MAX: Final = 90.0
WARM_S_MAX: Final = 60.0
CYCLES_MAX: Final = 60
END_S_MAX: Final = 180.0
ZERO_S_MAX: Final = 60.0
POLICY_ZERO_S_MAX: Final = 480.0
"""300 s, two steps of 30 s, and two minutes for a decision and drains."""

JOB_ITEMS: Final = 40
JOB_PAUSE_S: Final = 3.0
"""A replica runs 32 items/s, so one holds against all clients."""

_PAUSE_S: Final = 8.0
"""Longer than a session and the start of a successor: the paused owner resumes as a zombie."""


@dataclass(slots=True)
class Jobs:
    """Creates jobs until its thread is stopped."""

    context: DrillContext
    ids: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        """Create a job at each pause."""
        client, number = self.context.client("jobs"), 0
        while not stop.is_set():
            until_s = time.monotonic() + END_S_MAX
            content = input_lines(JOB_ITEMS, MODEL)
            key = f"scaling-{self.context.seed}-{number}"
            self.ids.append(str(client.submit(key, content, until_s)["id"]))
            number += 1
            stop.wait(JOB_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The parts of a round."""

    context: DrillContext
    chance: random.Random
    autoscalers: Autoscalers
    relay: ScalingRelay
    watch: ScaledPoolWatch
    recoveries: list[Recovery] = field(default_factory=list)
    owner_ends: list[OwnerEnd] = field(default_factory=list)

    def set_replicas(self, replicas: int | None) -> None:
        """Order a number as an operator does, once the log takes it; None: the policy decides.

        Raises DrillError.
        """
        mode = "" if replicas is None else "set"
        override = ScalingOverride(POOL, mode, replicas or 0, by="chaos", at_s=time.time())

        def is_written() -> bool:
            try:
                write_override(self.context.installation.kafka, override)
            except DeliveryError:
                return False
            return True

        self.autoscalers.wait(is_written, TARGET_S_MAX, "the log to take an order")

    def other_number(self) -> int:
        """Return a number of replicas that the pool does not have."""
        now = self.watch.samples[-1].ordered if self.watch.samples else 0
        return self.chance.choice([n for n in range(1, REPLICAS_MAX + 1) if n != now])

    def await_replicas(self, what: str, replicas: int, since_s: float) -> None:
        """Wait until the host runs so many; record how long that took. Raises DrillError."""

        def has_them() -> bool:
            if not self.watch.samples:
                return False
            last = self.watch.samples[-1]
            is_new = last.at_s > since_s and last.epoch == self.watch.epoch
            return is_new and last.ordered == len(last.existing) == replicas

        started_s = time.monotonic() - (time.time() - since_s)
        try:
            self.autoscalers.wait(has_them, TARGET_S_MAX, f"{replicas} replicas after {what}")
        except DrillError:
            self.recoveries.append(Recovery(what, math.inf))
            raise
        self.recoveries.append(Recovery(what, time.monotonic() - started_s))

    def await_warm(self) -> None:
        """Wait until each replica that exists was warm. Raises DrillError."""
        self.autoscalers.wait(
            lambda: self.watch.samples[-1].existing <= self.watch.warm, WARM_S_MAX, "warm replicas"
        )

    def owner_pid(self) -> tuple[int, int]:
        """Return the epoch and the process id of who decides. Raises DrillError."""
        found: list[tuple[int, int]] = []

        def is_known() -> bool:
            epoch = self.watch.epoch
            if pid := self.autoscalers.owner_pid(epoch):
                found.append((epoch, pid))
            return bool(found) and epoch in self.watch.decided_s

        self.autoscalers.wait(is_known, TARGET_S_MAX, "an owner")
        return found[-1]

    def end_owner(self, epoch: int, pid: int, number: signal.Signals) -> None:
        """Signal the owner and wait until another decides. Raises DrillError."""
        ended_s = time.time()
        if not send_signal(pid, number):
            raise DrillError("the autoscaler that decides had ended")

        def is_followed() -> bool:
            return any(one > epoch for one in list(self.watch.decided_s))

        try:
            self.autoscalers.wait(is_followed, TARGET_S_MAX, "a successor")
        except DrillError:
            self.owner_ends.append(OwnerEnd(ended_s, math.inf))
            raise
        next_s = min(at_s for one, at_s in self.watch.decided_s.items() if one > epoch)
        self.owner_ends.append(OwnerEnd(ended_s, next_s - ended_s))


def write_policies(data: Path) -> Path:
    """Write the policy file of the installation on `data` and return its path."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / "scaling.toml"
    path.write_text(POLICIES)
    return path


def planned_faults(seed: int, *, long: bool) -> list[str]:
    """Return the faults of a round, in order.

    A quick round has a held order, a kill, the broker and one fault of the socket; a long one has
    each fault three times.
    """
    chance = random.Random(f"scaling-{seed}")
    faults = list(FAULTS) * 3
    if not long:
        faults = [HELD, KILLED, BROKER, chance.choice(list(SOCKET_FAULTS))]
    chance.shuffle(faults)
    return faults


def run(context: DrillContext) -> Iterator[Measure]:
    """Run one round."""
    jobs, calls = Jobs(context), DurableCalls(context)
    with _scaled(context) as scaled:
        killer = DrainKiller(
            scaled.autoscalers.host,
            scaled.relay,
            POOL,
            lambda replica_id: replica_id in scaled.watch.warm,
            random.Random(f"drain-{context.seed}"),
        )
        wanted = context.size(*DRAIN_KILLS)
        try:
            with background_threads(jobs.run, calls.run, killer.run):
                _wake(scaled)
                for fault in planned_faults(context.seed, long=context.long):
                    context.note(f"scaling: {fault}")
                    _inject(scaled, fault)
                _remove_until(scaled, wanted, lambda: len(killer.killed))
        finally:
            yield from measure_recoveries(scaled.recoveries, scaled.owner_ends)
            yield from measure_orders(scaled.relay.orders, scaled.watch.samples, REPLICAS_MAX)
        yield Measure(
            "P16",
            "replicas that were killed while they drained",
            len(killer.killed),
            limit=wanted,
            relation=">=",
            size=len(killer.seen),
            evidence=f"of {len(killer.seen)} that were removed",
        )
        scaled.set_replicas(REPLICAS_MAX // 2)
        until_s = time.monotonic() + END_S_MAX
        ended = database.await_jobs(
            context.engine, context.client("end"), jobs.ids, until_s, note=context.note
        )
        reader = context.client("reader")
        yield from reconcile_jobs(
            context.engine, reader, [EndedJob(job, JOB_ITEMS) for job in ended.values()]
        )
        yield from check_calls(context.engine, reader, "P16", calls.bodies, until_s)
        yield from measure_attempts(context.engine, jobs.ids, JOB_ITEMS, len(killer.seen))
        yield _to_zero(scaled)


@contextmanager
def _scaled(context: DrillContext) -> Iterator[Scaled]:
    """Put a relay and a second autoscaler into the installation for a block."""
    (host,) = context.installation.hosts.values()
    chance = random.Random(f"scaling-faults-{context.seed}")
    with ExitStack() as stack:
        relay = stack.enter_context(ScalingRelay(host.data / FILE_NAME, chance))
        watch = ScaledPoolWatch(context.installation.kafka, POOL, relay.observe)
        watching = background_threads(watch.read_scaling, watch.read_capacity, watch.sample)
        stack.enter_context(watching)
        both = stack.enter_context(second_autoscaler(host, context.work / "logs"))
        yield Scaled(context=context, chance=chance, autoscalers=both, relay=relay, watch=watch)


def _wake(scaled: Scaled) -> None:
    """Leave the pool to its policy until that has started a replica for the first job.

    An earlier round on this installation may have left an operator's order. Raises DrillError.
    """
    scaled.set_replicas(None)
    started_s = time.monotonic()
    wait = scaled.autoscalers.wait
    wait(lambda: any(one.existing for one in scaled.watch.samples), TARGET_S_MAX, "a first replica")
    scaled.context.note(f"scaling: woken after {time.monotonic() - started_s:.1f} s")


def _inject(scaled: Scaled, fault: str) -> None:
    """Change the number of replicas beside a fault, and await the number. Raises DrillError."""
    replicas, chance = scaled.other_number(), scaled.chance
    if fault == HELD:
        _hold_and_kill(scaled, replicas)
    elif fault in OWNER_FAULTS:
        epoch, pid = scaled.owner_pid()
        scaled.set_replicas(replicas)
        _pass(scaled, chance.uniform(0, 1.5))
        if fault == KILLED:
            scaled.end_owner(epoch, pid, signal.SIGKILL)
        else:
            paused_s = time.monotonic()
            try:
                scaled.end_owner(epoch, pid, signal.SIGSTOP)
                _pass(scaled, _PAUSE_S - (time.monotonic() - paused_s))
            finally:
                send_signal(pid, signal.SIGCONT)
    elif fault == BROKER:
        scaled.set_replicas(replicas)
        _pass(scaled, chance.uniform(0, 1.5))
        heal = kill_service(scaled.context.installation, "kafka-1")
        _pass(scaled, chance.uniform(1, 4))
        heal()
        replicas = scaled.other_number()
        scaled.set_replicas(replicas)  # waits for the broker
    else:
        scaled.relay.fault = SOCKET_FAULTS[fault]
        scaled.set_replicas(replicas)
        _pass(scaled, chance.uniform(2, 6))
        scaled.relay.fault = ""
    scaled.await_replicas(fault, replicas, time.time())


def _hold_and_kill(scaled: Scaled, replicas: int) -> None:
    """Kill the owner while its order is written to the log and not carried out."""
    epoch, pid = scaled.owner_pid()
    scaled.relay.fault = "hang"
    try:
        scaled.set_replicas(replicas)

        def is_held() -> bool:
            held = scaled.relay.held()
            return held is not None and held.replicas == replicas

        scaled.autoscalers.wait(is_held, TARGET_S_MAX, "an order at the socket")
        scaled.end_owner(epoch, pid, signal.SIGKILL)
    finally:
        scaled.relay.fault = ""


def _pass(scaled: Scaled, seconds: float) -> None:
    """Let time pass, and keep the second autoscaler running."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        scaled.autoscalers.supervisor.run_once()
        time.sleep(0.05)


def _remove_until(scaled: Scaled, wanted: int, killed: Callable[[], int]) -> None:
    """Add and remove replicas until `wanted` were killed. Raises DrillError."""
    for _ in range(CYCLES_MAX):
        scaled.context.note(f"scaling: {killed()} of {wanted} killed while they drained")
        if killed() >= wanted:
            return
        for replicas in (REPLICAS_MAX, 1):
            scaled.set_replicas(replicas)
            what = "an operator's order"
            scaled.await_replicas(what, replicas, time.time())
            scaled.await_warm()
        _pass(scaled, 2 * DELAY_S_MAX)  # the kills of this removal
    if killed() < wanted:
        raise DrillError("too few replicas drained for long enough to be killed")


def _to_zero(scaled: Scaled) -> Measure:
    """Have the pool go to zero and return how long it takes until no replica runs.

    In a long round by its policy, which keeps the highest need of 300 s and removes one replica in
    30 s; in a quick one by an operator's order.
    """
    is_long = scaled.context.long
    scaled.set_replicas(None if is_long else 0)
    started_s, host = time.monotonic(), scaled.autoscalers.host
    limit_s = POLICY_ZERO_S_MAX if is_long else ZERO_S_MAX
    try:
        scaled.autoscalers.wait(lambda: not running_replicas(host), limit_s, "no replica")
        took_s = time.monotonic() - started_s
    except DrillError:
        took_s = math.inf
    left = f"{len(running_replicas(host))} left"
    what = "until no replica runs, by the policy" if is_long else "until no replica runs, by order"
    return duration("P16", what, took_s, limit_s, evidence=left)
