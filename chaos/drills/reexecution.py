"""P3: re-executions after a kill of a replica or a batcher, counted by the upstream."""

import random
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Final

from chaos.checkers.end_states import MAY_BE_CANCELLED
from chaos.checkers.executions import ItemEvent, reexecutions_after
from chaos.checkers.results import is_echo_answer
from chaos.clients.client import input_lines
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import require_target
from chaos.faults.processes import kill_role
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.measures import MEDIAN, Measure
from chaos.observations import database
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

BATCH_ITEMS: Final = 100
IN_FLIGHT_MAX: Final = {"gpu-consumer": 3 * BATCH_ITEMS, "batcher": 4 * BATCH_ITEMS}
"""Executions that one death may repeat: two granted batches and the running one; for a batcher also
the items dispatched within a commit interval, here less than a batch."""

GAP: Final = (2.0, 2.5)
"""Times `IN_FLIGHT_MAX` executions start between a role's recovery and its next death. More than
may be repeated, so that an excess is visible."""

ITEMS_A_KILL: Final = {"gpu-consumer": 900, "batcher": 2000}
"""The replica continues without its batcher, but nothing runs without the replica."""

JOIN_S: Final = {"gpu-consumer": 0.0, "batcher": SESSION_S}
"""From a process's start until it certainly works; progress shows that for a replica."""

JOB_S_MAX: Final = 400.0
MODEL: Final = "small"


def run(context: DrillContext) -> list[Measure]:
    """Kill one role repeatedly in the middle of a job; count re-executions after each kill."""
    chance = random.Random(context.seed)
    role = ("gpu-consumer", "batcher")[context.seed % 2]
    name = f"rework-{context.seed}"
    client = context.client(name)
    until_s = time.monotonic() + JOB_S_MAX
    kills = context.size(10, 3)
    items = (kills + 1) * ITEMS_A_KILL[role]
    texts = {number: f"{name} {number}" for number in range(items)}
    content = input_lines(items, MODEL, texts)
    job = client.submit(name, content, until_s)
    seen = context.starts(name)
    killed_s: list[float] = []
    for _ in range(kills):
        gap = round(IN_FLIGHT_MAX[role] * chance.uniform(*GAP))
        _await_work(context, role, seen, gap, items)
        if started_items(seen()) == items:
            context.note(f"only {len(killed_s)} kills: the work is done")
            break
        killed_s.append(time.time())
        require_target(kill_role(context.installation, f"a/{role}"), f"a/{role}")
    _await_work(context, role, seen, round(IN_FLIGHT_MAX[role] * GAP[0]), items)
    # The repeated work is done; the rest is not measured.
    (ended,) = database.cancel_jobs(context.engine, client, [job["id"]], until_s).values()
    if not killed_s:
        raise DrillError("the work was done before the first kill")
    again = reexecutions_after(seen(), killed_s)
    context.note(f"executed again after each kill of the {role}: {again}")
    what, size = f"items executed again after a kill of the {role}", items // len(again)
    each = [Measure("P3", what, count, limit=IN_FLIGHT_MAX[role], size=size) for count in again]
    what, size = f"{MEDIAN} of them in one job: {role}", len(again)
    evidence = str(again)
    middle = Measure("P3", what, median(again), limit=BATCH_ITEMS, size=size, evidence=evidence)
    ended_job = EndedJob(ended, items, MAY_BE_CANCELLED, content, is_echo_answer)
    reconciled = reconcile_jobs(context.engine, client, [ended_job])
    return [*each, middle, *reconciled]


def started_items(starts: Iterable[ItemEvent]) -> int:
    """Return how many different items have started."""
    return len({start.item for start in starts})


def _await_work(
    context: DrillContext, role: str, seen: Callable[[], list[ItemEvent]], count: int, items: int
) -> None:
    """Wait until a role works and `count` more executions have started, or all items have."""
    before = len(seen())
    context.installation.hosts["a"].pid(role, JOB_S_MAX)
    from_s = time.monotonic() + JOIN_S[role]

    def has_enough() -> bool:
        found = seen()
        has_worked = time.monotonic() >= from_s and len(found) >= before + count
        return has_worked or started_items(found) == items

    wait_until(has_enough, JOB_S_MAX, "progress")
