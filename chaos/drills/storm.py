"""P1, P2, P4, P5 and P6: clients create jobs while faults are injected at random.

1. Clients and watchers start. 2. The seed's plan runs. 3. All faults are healed. 4. Every
acknowledged job must end: one that does not has lost items. 5. History, rows and files are checked.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.background_threads import background_threads
from chaos.checkers.acceptance import acknowledged_ids, conflicting_ids, missing_or_unfinished
from chaos.checkers.end_states import ALL_SUCCEED, CANCELLED, MAY_BE_CANCELLED, EndStates
from chaos.clients.client import TERMINAL, Client, input_lines
from chaos.clients.observers import watching_jobs
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.faults.injector import FaultInjector, fault_kinds
from chaos.faults.plan import plan_faults
from chaos.installations.settings import FINALISER_LEASE_S
from chaos.measures import Measure, duration, violations
from chaos.observations import database
from chaos.verification.acknowledged import DurableCalls, check_calls, check_contents
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

HEALED_S_MAX: Final = 600.0
CANCELLED_SHARE: Final = 0.15
CREATIONS: Final = ("create", "upload", "call")
APPLIED_SHARE: Final = 0.8
"""Of the faults of a plan; a few target a process that another fault has just killed."""


def run(context: DrillContext) -> Iterator[Measure]:
    """Run one storm."""
    duration_s = context.size(120, 60)
    installation = context.installation
    faults = plan_faults(
        context.seed,
        fault_kinds(tuple(installation.hosts), FINALISER_LEASE_S),
        duration_s=duration_s,
        gap_s=(1, 5) if context.long else (1, 4),
    )
    jobs = JobCreator(context, duration_s)
    clients = [context.client(f"watcher-{name}", host=name) for name in installation.hosts]
    injector = FaultInjector(installation, faults, context.recorder)
    calls = DurableCalls(context)
    with watching_jobs(clients) as watch:
        with injector, background_threads(calls.run):
            jobs.run(watch)
        planned = Counter(fault.kind for fault in faults)
        context.note(
            f"healed; {len(jobs.sizes)} jobs; faults: {describe_hits(planned, injector.hits)}"
        )
        healed_s = injector.healed_s  # clients may have retried for long since then
        accepted = set(acknowledged_ids(context.recorder.operations()).values()) | jobs.sizes.keys()
        end = context.client("end")
        ended = database.await_jobs(
            installation.engine, end, accepted, healed_s + HEALED_S_MAX, note=context.note
        )
        all_terminal = all(job["status"] in TERMINAL for job in ended.values())
        took_s = time.monotonic() - healed_s if all_terminal else float("inf")
    for unfinished in database.unfinished_jobs(installation.engine):
        context.note(f"stuck: {unfinished}")
    yield from check_faults(planned, injector.hits, injector.failures, injector.unhealed)
    yield from _check_acceptance(context, jobs, calls, took_s)
    reader = context.client("reader")
    yield from reconcile_jobs(installation.engine, reader, jobs.ended(ended))
    yield from check_calls(installation.engine, reader, "P1", calls.bodies, healed_s + HEALED_S_MAX)


def describe_hits(planned: Mapping[str, int], hits: Mapping[str, int]) -> str:
    """Return how many faults of each kind hit a target, of how many planned."""
    return ", ".join(f"{kind} {hits.get(kind, 0)} of {planned[kind]}" for kind in sorted(planned))


def check_faults(
    planned: Mapping[str, int],
    hits: Mapping[str, int],
    no_target: Sequence[str],
    unhealed: Sequence[str],
) -> list[Measure]:
    """Report how much of a plan was applied: a storm without hits proves nothing.

    `planned` and `hits` are numbers by kind.
    """
    count = sum(planned.values())
    return [
        Measure(
            "P1",
            "kinds of faults that hit nobody",
            sum(not hits.get(kind) for kind in planned),
            relation="report",
            size=len(planned),
            evidence=describe_hits(planned, hits),
        ),
        Measure(
            "P1",
            "share of the faults that hit somebody",
            1 - len(no_target) / max(count, 1),
            limit=APPLIED_SHARE,
            relation=">=",
            size=count,
            evidence="; ".join(no_target),
        ),
        violations("P1", "faults that could not be healed", unhealed, size=count),
    ]


class JobCreator:
    """Clients that create jobs throughout a storm."""

    def __init__(self, context: DrillContext, duration_s: float) -> None:
        """Prepare; `run` starts the clients."""
        self._context, self._duration_s = context, duration_s
        self.sizes: dict[str, int] = {}  # job to its items
        self.sent: dict[str, bytes] = {}  # file to its content
        self.failures: list[str] = []
        self._ends: dict[str, EndStates] = {}  # of jobs that are or may be cancelled

    def ended(self, found: Mapping[str, Mapping[str, Any]]) -> list[EndedJob]:
        """Return each job that a client knows, with its allowed ends."""
        return [
            EndedJob(found[job_id], size, self._ends.get(job_id, ALL_SUCCEED))
            for job_id, size in self.sizes.items()
        ]

    def run(self, watch: Callable[[str], None]) -> None:
        """Create jobs throughout the storm; return when every client knows its jobs."""
        threads = [
            threading.Thread(target=self._create, args=(number, watch), daemon=True)
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _create(self, number: int, watch: Callable[[str], None]) -> None:
        context = self._context
        chance = random.Random(f"{context.seed}-{number}")
        client = context.client(f"client-{number}")
        started_s = time.monotonic()
        until_s = started_s + self._duration_s + HEALED_S_MAX
        for count in range(context.size(60, 20)):
            wait_s = chance.uniform(0.5, 4.0)
            size = chance.choice((1, 20, 100, 300, 800))
            if time.monotonic() + wait_s > started_s + self._duration_s:
                return
            time.sleep(wait_s)
            key = f"{context.seed}-{number}-{count}"
            try:
                job = self._create_job(client, key, size, until_s)
                watch(job["id"])
                if chance.random() < CANCELLED_SHARE:
                    time.sleep(chance.uniform(0.1, 2.0))
                    self.cancel(client, job["id"], until_s)
            except DrillError as failure:
                self.failures.append(str(failure))

    def _create_job(self, client: Client, key: str, size: int, until_s: float) -> dict[str, Any]:
        content = input_lines(size, MODEL)
        file_id = client.upload(f"file-{key}", content, until_s)
        self.sent[file_id] = content
        job = client.create(f"job-{key}", file_id, until_s)
        self.sizes[job["id"]] = size
        return job

    def cancel(self, client: Client, job_id: str, until_s: float) -> None:
        """Cancel a job, and record its allowed ends, whatever the response."""
        self._ends[job_id] = MAY_BE_CANCELLED
        if not client.cancel(job_id, until_s).is_refused:
            self._ends[job_id] = CANCELLED


def _check_acceptance(
    context: DrillContext, jobs: JobCreator, calls: DurableCalls, took_s: float
) -> list[Measure]:
    history = list(context.recorder.operations())
    accepted = acknowledged_ids(history)
    lost = missing_or_unfinished(accepted.values(), database.job_states(context.engine), TERMINAL)
    files = dict.fromkeys(acknowledged_ids(history, "upload").values(), b"") | jobs.sent
    disagree: dict[str, str] = {}
    for op in CREATIONS:
        disagree |= conflicting_ids(history, op)
    errors = [
        f"{step.op} {step.key}"
        for step in history
        if step.op in CREATIONS and step.detail.get("status") == 500
    ]
    keys = sum(len(acknowledged_ids(history, op)) for op in CREATIONS)
    failures = jobs.failures + calls.failures
    what = "acknowledged jobs missing or not terminal 600 s after heal"
    return [
        violations("P1", what, lost, size=len(accepted)),
        check_contents(context, "P1", files),
        duration(
            "P1", "from heal until all were terminal", took_s, HEALED_S_MAX, size=len(accepted)
        ),
        violations("P1", "creations that never succeeded", failures, size=keys + len(failures)),
        violations("P5", "keys answered with different ids", disagree, size=keys),
        violations("P5", "answers 500 to creations, uploads and calls", errors, size=keys),
    ]
