"""A12: seconds from a kill until the rate is back at 90 %, and duplicate outcomes.

With vLLM most of the time is its own start; that drill is reported only.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

import sqlalchemy as sa
from msgspec.structs import replace

from benchmarks.background_threads import background_threads
from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.checkers.outages import RATE_MIN, Sample, seconds_to_recovery, steady_rate
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.faults import processes
from chaos.faults.healing import Heal, require_target
from chaos.faults.redelivery import CONSUMED
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.installations.settings import SESSION_S
from chaos.measures import Measure
from chaos.observations import database
from chaos.observations.role_counters import DUPLICATES, count_increase
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import REQUESTS_BULK

RECOVERED_SHARE: Final = 0.9
LEAD_S: Final = 4.0
SETTLED_S: Final = 5.0
"""How long the recovered rate is watched further, since the dip may come late."""
SERVED_S_MAX: Final = 40.0
JOINED_S_MAX: Final = 180.0
STEADY_S_MAX: Final = 180.0
ITEMS: Final = 60_000
"""More than complete while the recovery is measured; the rest is cancelled."""

GOAL_S: Final = 1.2 * SESSION_S
WITH_GOAL: Final = ("intake", "batcher", "gpu-consumer", "results-writer")
BROKER: Final = "broker"
VLLM_MODEL: Final = "tiny-llama"


def run(context: DrillContext) -> Iterator[Measure]:
    """Kill each process in turn in the middle of a long job, and sample the succeeded items.

    The effect of a role's death depends on what its host owns at that moment. A long run kills each
    role on every host, a quick run on the host chosen by the seed.
    """
    installation, engine = context.installation, context.engine
    client = context.client("recovery")
    until_s = time.monotonic() + 600
    file_id = client.upload(f"file-recovery-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    for number, (name, kill) in enumerate(_kills(context)):
        job = client.create(f"recovery-{context.seed}-{number}", file_id, until_s)
        duplicates = count_increase(installation, DUPLICATES)
        yield from _measure_role_kill(context, name, kill)
        yield Measure(
            "A12",
            f"outcomes that came twice, and were seen once: {name}",
            duplicates(),
            relation="report",
        )
        until_s = time.monotonic() + 180
        (ended,) = database.cancel_jobs(engine, client, [job["id"]], until_s).values()
        yield from reconcile_jobs(engine, client, [EndedJob(ended, ITEMS, MAY_BE_CANCELLED)])


def run_vllm(context: DrillContext) -> list[Measure]:
    """Kill the only replica, which runs vLLM, in the middle of a job."""
    engine, client = context.engine, context.client("engine-recovery")
    content = input_lines(ITEMS, VLLM_MODEL)
    job = client.submit(f"engine-recovery-{context.seed}", content, time.monotonic() + 600)
    database.await_progress(engine, 500)
    (host,) = context.installation.hosts
    recovered = measure_kill(
        context,
        "gpu-consumer with vLLM, its start included",
        partial(processes.kill_role, context.installation, f"{host}/gpu-consumer"),
        lead_s=2 * LEAD_S,
        over_s=3.0,
        watched_s=180.0,
    )
    until_s = time.monotonic() + 180
    (ended,) = database.cancel_jobs(engine, client, [job["id"]], until_s).values()
    ended_job = EndedJob(ended, ITEMS, MAY_BE_CANCELLED, is_own_answer=None)
    return [recovered, *reconcile_jobs(engine, client, [ended_job])]


def _kills(context: DrillContext) -> list[tuple[str, Callable[[], Heal]]]:
    installation = context.installation
    names = sorted(installation.hosts)
    hosts = names if context.long else [names[context.seed % len(names)]]
    roles = (*WITH_GOAL, *(("finaliser", "api") if context.long else ()))
    return [
        *(
            (role, partial(processes.kill_role, installation, f"{h}/{role}"))
            for role in roles
            for h in hosts
        ),
        ("postgres", partial(processes.restart_service, installation, "postgres")),
        (BROKER, partial(_kill_broker, installation)),
    ]


def _kill_broker(installation: Installation) -> Heal:
    """Kill the broker and let it restart at once."""
    allow_start = processes.kill_service(installation, "kafka-1")
    allow_start()
    return allow_start


def _seconds_to_serve(installation: Installation) -> float:
    """Return seconds until a broker leads partitions and knows group offsets; infinite if late.

    The rest of a recovery is Millrace's.
    """
    started_s = time.monotonic()
    while time.monotonic() < started_s + SERVED_S_MAX:
        with contextlib.suppress(KafkaUnavailableError):
            TopicAdmin(installation.kafka).lag("batcher-bulk", REQUESTS_BULK)
            return time.monotonic() - started_s
    return float("inf")


def _all_joined(installation: Installation) -> bool:
    """Return whether every host has joined every group: a late join would look like recovery."""
    admin = TopicAdmin(installation.kafka)
    try:
        counts = [admin.member_count(found.group) for found in CONSUMED.values()]
    except KafkaUnavailableError:
        return False
    return min(counts) >= len(installation.hosts)


def _measure_role_kill(context: DrillContext, name: str, kill: Callable[[], Heal]) -> list[Measure]:
    installation = context.installation
    wait_until(lambda: _all_joined(installation), JOINED_S_MAX, "every member of every group")
    database.await_progress(context.engine, 200)
    with ThreadPoolExecutor(1) as pool:
        serving: list[Future[float]] = []

        def kill_it() -> Heal:
            heal = kill()
            if name == BROKER:
                serving.append(pool.submit(_seconds_to_serve, installation))
            return heal

        recovered = measure_kill(context, name, kill_it)
    if name in WITH_GOAL:
        recovered = replace(recovered, limit=GOAL_S, relation="goal")
    if not serving:
        return [recovered]
    served_s = round(serving[0].result(), 2)
    context.note(f"{name} served after {served_s} s")
    return [recovered, replace(recovered, what=f"of it until the {name} served", value=served_s)]


def measure_kill(
    context: DrillContext,
    name: str,
    kill: Callable[[], Heal],
    *,
    lead_s: float = LEAD_S,
    over_s: float = 1.0,
    watched_s: float = 40.0,
) -> Measure:
    """Kill a process under load; report how long the rate takes to recover.

    The reference is the rate in the half of `lead_s` before; windows of `over_s` are compared with
    it. The kill waits for a steady rate. Raises DrillError without one, or without a target. The
    rate is sampled until it has settled, at most `watched_s`.
    """
    with sampling(context.engine) as samples:
        time.sleep(lead_s)
        killed_s, rate = _await_rate(samples, lead_s / 2, name)
        goal = RECOVERED_SHARE * rate
        require_target(kill(), name)
        while time.monotonic() < killed_s + watched_s:
            time.sleep(over_s)
            seen = list(samples)
            took_s = seconds_to_recovery(seen, killed_s, goal, over_s=over_s)
            if seen[-1].at_s > killed_s + took_s + SETTLED_S:
                break
    record_samples(context, name, samples, killed_s)
    took_s = seconds_to_recovery(samples, killed_s, goal, over_s=over_s)
    context.note(f"{name} at {rate:.0f} items/s: {took_s:.2f} s")
    return Measure(
        "A12",
        f"from kill -9 to 90 % of the rate: {name}",
        round(took_s, 2),
        unit="s",
        relation="report",
        size=round(rate),
        evidence=f"{rate:.0f} items/s before",
    )


def _await_rate(samples: Sequence[Sample], over_s: float, name: str) -> tuple[float, float]:
    """Wait for a steady rate; return the moment and the rate of the `over_s` before it.

    Raises DrillError without one in `STEADY_S_MAX`.
    """
    found: list[tuple[float, float]] = []

    def is_steady() -> bool:
        now_s = time.monotonic()
        rate = steady_rate(list(samples), now_s, over_s=over_s)
        if rate is not None:
            found.append((now_s, rate))
        return bool(found)

    wait_until(is_steady, STEADY_S_MAX, f"{RATE_MIN:g} items/s before the kill of {name}")
    return found[0]


@contextlib.contextmanager
def sampling(engine: sa.Engine) -> Iterator[Sequence[Sample]]:
    """Sample the number of succeeded items ten times a second during a block.

    Postgres's downtime counts as a standstill.
    """
    samples: list[Sample] = []

    def sample(stop: threading.Event) -> None:
        while not stop.wait(0.1):
            try:
                count = database.succeeded_count(engine)
            except Exception:  # noqa: BLE001  Postgres may be the killed process
                count = samples[-1].total if samples else 0
            samples.append(Sample(time.monotonic(), count))

    with background_threads(sample):
        yield samples


def record_samples(
    context: DrillContext, name: str, samples: Sequence[Sample], killed_s: float
) -> None:
    """Record the samples of one kill in the history."""
    curve = [(round(sample.at_s - killed_s, 2), sample.total) for sample in samples]
    context.recorder.record("sampler", "samples", name, "ok", seconds_and_items=curve)
