"""P5: one key creates one job, under concurrency, kills before the response, and misuse."""

import random
import threading
import time
from collections.abc import Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Final

import httpx
import sqlalchemy as sa

from benchmarks.background_threads import background_threads
from chaos.checkers.acceptance import (
    acknowledged_ids,
    broken_connections,
    conflicting_ids,
    inconsistent_replays,
    lost_responses,
)
from chaos.clients.client import PAUSE_S, RETRYABLE_STATUSES, Client, input_lines, job_body
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import no_target
from chaos.faults.processes import kill_role
from chaos.measures import Measure, violations
from chaos.observations.database import select_value

CREATE_S_MAX: Final = 240.0
THREADS: Final = 50
GROUP_SIZE: Final = 8
KILLS: Final = 4
_PAUSE_S: Final = 0.01
_SLOW_COMMITS: Final = """
CREATE FUNCTION chaos.slow_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER chaos_slow_commit AFTER INSERT ON public.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION chaos.slow_commit();
"""
_RESTORE_COMMITS: Final = """
DROP TRIGGER chaos_slow_commit ON public.jobs;
DROP FUNCTION chaos.slow_commit();
"""
_COMMITTING: Final = "SELECT usename FROM pg_stat_activity WHERE wait_event = 'PgSleep' LIMIT 1"

_measure = partial(Measure, "P5")


def run(context: DrillContext) -> Iterator[Measure]:
    """Create jobs under shared keys and check which jobs exist afterwards."""
    keys = context.size(200, 40)
    until_s = time.monotonic() + CREATE_S_MAX
    mark = f"p5-{context.seed}"
    client = context.client("p5")
    file_id = client.upload(f"file-{mark}", input_lines(1, MODEL), until_s)
    answered: list[str] = []
    killer = CommitKiller(context, answered, THREADS * keys)
    with (
        slow_commits(context.engine),
        background_threads(killer.run),
        ThreadPoolExecutor(THREADS) as pool,
    ):
        futures = [
            pool.submit(_create_with_every_key, context, number, mark, keys, file_id, answered)
            for number in range(THREADS)
        ]
        for future in futures:
            future.result()
    history = context.recorder.operations()
    broken, lost = broken_connections(history), len(lost_responses(history))
    context.note(f"{killer.count} kills, {broken} connections broken, {lost} first answers lost")
    what = "keys whose answers are not one answer and its replays"
    made, ids = _count(context, mark), acknowledged_ids(history)
    found = [
        _measure("jobs beyond or short of one a key", abs(made - keys), size=keys),
        violations("P5", what, inconsistent_replays(history), size=len(answered)),
        _measure("jobs whose own answer a kill took away", lost, relation="report", size=broken),
        violations(
            "P5", "keys answered with different ids", conflicting_ids(history), size=len(ids)
        ),
    ]
    is_tested = killer.count and broken and lost
    if not is_tested and not any(measure.is_violation for measure in found):
        raise DrillError("no kill fell between a commit and its answer")
    yield from found
    reused = _reused_with_other_body(client, mark, keys, file_id)
    yield _measure("changed bodies that were not refused with 422", reused, size=keys)
    failures = sum(
        step.detail.get("status", 0) >= HTTPStatus.INTERNAL_SERVER_ERROR
        and step.detail["status"] != HTTPStatus.SERVICE_UNAVAILABLE
        for step in context.recorder.operations()
    )
    yield _measure("answers 5xx other than 503", failures, size=len(ids))
    shared = _shared_with_other_tenant(context, mark)
    yield _measure("jobs of another tenant's same keys that were not new", shared, size=3)
    wrong = _invalid_key_results(client, mark, file_id)
    yield _measure("keys of a wrong form that were let in", wrong, size=3)


class CommitKiller:
    """Kills API processes in the middle of a commit, each after a number of responses.

    The commit succeeds without the API process; its response is lost.
    """

    def __init__(self, context: DrillContext, answered: Sized, total: int) -> None:
        """Prepare; `total` is the expected number of `answered`."""
        self.count = 0
        self._context, self._answered, self._total = context, answered, total

    def run(self, stop: threading.Event) -> None:
        """Kill until `stop` is set, at most `KILLS` times."""
        chance = random.Random(self._context.seed)
        for number in range(KILLS):
            goal = (number + chance.uniform(0.0, 0.7)) / KILLS * self._total
            host = None
            while host is None:
                if stop.wait(_PAUSE_S):
                    return
                if len(self._answered) >= goal:
                    host = self._committing_host()
            self.count += kill_role(self._context.installation, f"{host}/api") is not no_target

    def _committing_host(self) -> str | None:
        """Return a host whose API is waiting for a commit."""
        user = select_value(self._context.engine, _COMMITTING)
        return None if user is None else str(user).removeprefix("host_")


@contextmanager
def slow_commits(engine: sa.Engine) -> Iterator[None]:
    """Delay the commit of every created job during a block, so that kills can fall into it."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_SLOW_COMMITS)
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(_RESTORE_COMMITS)


def _create_with_every_key(
    context: DrillContext, number: int, mark: str, keys: int, file_id: str, answered: list[str]
) -> None:
    """Create a job with every key, a few at a time in random order; collect the responses.

    All threads reach a key at about the same time, so that keys are new until the end.
    """
    chance = random.Random(f"{context.seed}-{number}")
    groups = [range(first, min(first + GROUP_SIZE, keys)) for first in range(0, keys, GROUP_SIZE)]
    order = [key for group in groups for key in chance.sample(group, len(group))]
    client = context.client(f"p5-{number}")
    until_s = time.monotonic() + CREATE_S_MAX
    for key in order:
        answered.append(
            client.create(f"{mark}-{key}", file_id, until_s, metadata={"drill": mark})["id"]
        )


def _reused_with_other_body(client: Client, mark: str, keys: int, file_id: str) -> int:
    """Return how many keys accepted another body."""
    changed = {"drill": f"{mark}x"}
    responses = (_create(client, f"{mark}-{key}", file_id, changed) for key in range(keys))
    return sum(response.status_code != HTTPStatus.UNPROCESSABLE_ENTITY for response in responses)


def _shared_with_other_tenant(context: DrillContext, mark: str) -> int:
    """Return how many keys of another tenant returned a job of the first."""
    other = context.create_tenant_client("p5-other")
    own_jobs = set(acknowledged_ids(context.recorder.operations()).values())
    content = input_lines(1, MODEL)
    file_id = other.upload(f"other-file-{mark}", content, time.monotonic() + CREATE_S_MAX)
    wrong = 0
    for key in range(3):
        answer = _create(other, f"{mark}-{key}", file_id, {"drill": f"{mark}-other"})
        wrong += not answer.is_success or answer.json()["id"] in own_jobs
    return wrong


def _invalid_key_results(client: Client, mark: str, file_id: str) -> int:
    """Return how many invalid keys were accepted, or valid ones refused."""
    is_valid = {"": False, f"{mark}-".ljust(255, "k"): True, f"{mark}-".ljust(256, "k"): False}
    form = {"drill": f"{mark}-form"}
    return sum(
        _create(client, key, file_id, form).is_success != good for key, good in is_valid.items()
    )


def _create(client: Client, key: str, file_id: str, metadata: dict[str, str]) -> httpx.Response:
    """Send a creation until its response is final. Raises DrillError."""
    body = job_body(file_id, metadata=metadata)
    until_s = time.monotonic() + CREATE_S_MAX
    while time.monotonic() < until_s:
        answer = client.call("POST", "/v1/batches", {"idempotency-key": key}, json=body)
        if answer is not None:
            if answer.status_code not in RETRYABLE_STATUSES:
                return answer
            client.recorder.record(client.name, "create", key, "fail", status=answer.status_code)
        time.sleep(PAUSE_S)
    raise DrillError("a creation under a used or unusual key: no response in time")


def _count(context: DrillContext, mark: str) -> int:
    query = "SELECT count(*) FROM jobs WHERE metadata ->> 'drill' = :mark"
    return int(select_value(context.engine, query, mark=mark))
