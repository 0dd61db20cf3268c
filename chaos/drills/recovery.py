"""A12: seconds from a kill until the rate is back at 90 %, and duplicate outcomes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from msgspec.structs import replace

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.checkers.recovery import RATE_MIN, Sample, seconds_to_recovery, steady_rate
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL, DrillContext
from chaos.faults import processes, services
from chaos.faults.healing import Heal, require_target
from chaos.faults.redelivery import POOL, consumed_topics
from chaos.installations.hosts import wait_until
from chaos.installations.installation import Installation
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.role_counters import DUPLICATES, read_counters, total_increase
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from topics.clients.admin import TopicAdmin
from topics.clients.group_offsets import GroupOffsets
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import REQUESTS_BULK

RECOVERED_SHARE: Final = 0.9
OVER_S: Final = 1.0
WATCHED_S: Final = 40.0
PROGRESS_S_MAX: Final = 180.0
LEAD_S: Final = 4.0
SETTLED_S: Final = 5.0
"""How long the recovered rate is watched further, since the dip may come late."""
ITEMS: Final = 60_000
"""More than complete while the recovery is measured; the rest is cancelled."""

GOAL_S: Final = 1.2 * SESSION_S
WITH_GOAL: Final = ("intake", "batcher", "gpu-consumer", "results-writer")
BROKER: Final = "broker"


def run(context: DrillContext) -> Iterator[Measure]:
    """Kill each process in turn in the middle of a long job, and sample the succeeded items.

    The effect of a role's death depends on what its host owns at that moment. A long run kills each
    role on every host, a quick run on the host chosen by the seed.
    """
    installation = context.installation
    client = context.client("recovery")
    until_s = time.monotonic() + 600
    file_id = client.upload(f"file-recovery-{context.seed}", input_lines(ITEMS, MODEL), until_s)
    for number, (name, kill) in enumerate(_kills(context)):
        job = client.create(f"recovery-{context.seed}-{number}", file_id, until_s)
        before = read_counters(installation, DUPLICATES)
        yield from _measure_role_kill(context, name, kill)
        duplicates = total_increase(before, read_counters(installation, DUPLICATES))
        yield Measure(
            "A12",
            f"outcomes that came twice, and were seen once: {name}",
            duplicates,
            relation="report",
        )
        client.cancel(job["id"], time.monotonic() + 60)
        until_s = time.monotonic() + 180
        ended = database.await_jobs(installation.engine, client, [job["id"]], until_s)
        ended_job = EndedJob(ended[job["id"]], ITEMS, MAY_BE_CANCELLED)
        yield from reconcile_jobs(installation.engine, client, [ended_job])


def _kills(context: DrillContext) -> list[tuple[str, Callable[[], Heal]]]:
    installation = context.installation
    names = sorted(installation.hosts)
    hosts = names if context.long else [names[context.seed % len(names)]]
    roles = (*WITH_GOAL, *(("finaliser", "api") if context.long else ()))
    return [
        *(
            (role, partial(processes.kill, installation, f"{h}/{role}"))
            for role in roles
            for h in hosts
        ),
        ("postgres", lambda: services.restart_immediately(installation, "postgres")),
        (BROKER, lambda: _kill_broker(installation)),
    ]


def _kill_broker(installation: Installation) -> Heal:
    """Kill the broker and let it restart at once."""
    allow_start = services.kill(installation, "kafka-1")
    allow_start()
    return allow_start


def _seconds_to_serve(installation: Installation) -> float:
    """Return seconds until a broker leads partitions and knows group offsets; infinite if late.

    The rest of a recovery is Millrace's.
    """
    started_s = time.monotonic()
    while time.monotonic() < started_s + WATCHED_S:
        with contextlib.suppress(KafkaUnavailableError):
            TopicAdmin(installation.kafka).lag("batcher-bulk", REQUESTS_BULK)
            return time.monotonic() - started_s
    return float("inf")


def _all_joined(installation: Installation) -> bool:
    """Return whether every host has joined every group: a late join would look like recovery."""
    groups = [group for _, group, _ in consumed_topics(POOL).values()]
    try:
        counts = [GroupOffsets(installation.kafka, group).member_count() for group in groups]
    except KafkaUnavailableError:
        return False
    return min(counts) >= len(installation.hosts)


def _in_thread(work: Callable[[], float]) -> Future[float]:
    pool = ThreadPoolExecutor(1)
    found = pool.submit(work)
    pool.shutdown(wait=False)  # the thread ends with its work
    return found


def _measure_role_kill(context: DrillContext, name: str, kill: Callable[[], Heal]) -> list[Measure]:
    installation = context.installation
    wait_until(lambda: _all_joined(installation), PROGRESS_S_MAX, "every member of every group")
    before_count = database.succeeded_count(installation.engine)
    wait_until(
        lambda: database.succeeded_count(installation.engine) > before_count + 200,
        PROGRESS_S_MAX,
        "progress",
    )
    serving: Future[float] | None = None

    def kill_it() -> Heal:
        nonlocal serving
        heal = kill()
        if name == BROKER:
            serving = _in_thread(partial(_seconds_to_serve, installation))
        return heal

    recovered = measure_kill(context, name, kill_it)
    if name in WITH_GOAL:
        recovered = replace(recovered, limit=GOAL_S, relation="goal")
    if serving is None:
        return [recovered]
    served_s = round(serving.result(), 2)
    context.note(f"{name} served after {served_s} s")
    return [recovered, replace(recovered, what=f"of it until the {name} served", value=served_s)]


def measure_kill(
    context: DrillContext,
    name: str,
    kill: Callable[[], Heal],
    *,
    lead_s: float = LEAD_S,
    over_s: float = OVER_S,
    watched_s: float = WATCHED_S,
) -> Measure:
    """Kill a process under load; report how long the rate takes to recover.

    The reference is the rate in the half of `lead_s` before; windows of `over_s` are compared with
    it. The kill waits for a steady rate. Raises DrillError without one, or without a target.
    """
    sampler = RateSampler(context.installation)
    try:
        time.sleep(lead_s)
        killed_s, rate = sampler.await_rate(lead_s / 2, name)
        require_target(kill(), name)
    except BaseException:
        sampler.stop()
        raise
    samples = sampler.await_recovery(
        killed_s, RECOVERED_SHARE * rate, over_s=over_s, watched_s=watched_s
    )
    record_samples(context, name, samples, killed_s)
    took_s = seconds_to_recovery(samples, killed_s, RECOVERED_SHARE * rate, over_s=over_s)
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


def record_samples(
    context: DrillContext, name: str, samples: Sequence[Sample], killed_s: float
) -> None:
    """Record the samples of one kill in the history."""
    curve = [(round(sample.at_s - killed_s, 2), sample.total) for sample in samples]
    context.recorder.record("sampler", "samples", name, "ok", seconds_and_items=curve)


class RateSampler:
    """Samples the number of succeeded items ten times a second."""

    def __init__(self, installation: Installation) -> None:
        """Start sampling."""
        self.samples: list[Sample] = []
        self._installation = installation
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def await_rate(self, over_s: float, name: str) -> tuple[float, float]:
        """Wait for a steady rate; return the moment and the rate of the `over_s` before it.

        Raises DrillError without one in `PROGRESS_S_MAX`.
        """
        found: list[tuple[float, float]] = []

        def is_steady() -> bool:
            now_s = time.monotonic()
            rate = steady_rate(list(self.samples), now_s, over_s=over_s)
            if rate is not None:
                found.append((now_s, rate))
            return bool(found)

        wait_until(is_steady, PROGRESS_S_MAX, f"{RATE_MIN:g} items/s before the kill of {name}")
        return found[0]

    def await_recovery(
        self, killed_s: float, goal: float, *, over_s: float, watched_s: float
    ) -> list[Sample]:
        """Sample until the rate has settled at `goal`, at most `watched_s`; then stop."""
        while time.monotonic() < killed_s + watched_s:
            time.sleep(over_s)
            seen = list(self.samples)
            took_s = seconds_to_recovery(seen, killed_s, goal, over_s=over_s)
            if seen[-1].at_s > killed_s + took_s + SETTLED_S:
                break
        return self.stop()

    def stop(self) -> list[Sample]:
        """Stop, and return the samples; Postgres's downtime counts as a standstill."""
        self._stop.set()
        self._thread.join()
        return self.samples

    def _sample(self) -> None:
        while not self._stop.wait(0.1):
            try:
                count = database.succeeded_count(self._installation.engine)
            except Exception:  # noqa: BLE001  Postgres may be the killed process
                count = self.samples[-1].total if self.samples else 0
            self.samples.append(Sample(time.monotonic(), count))
