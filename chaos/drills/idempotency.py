"""P5: one key, one job: many threads, the API killed between commit and answer, replays, misuse."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

import httpx
import sqlalchemy as sa

from chaos.checkers.acceptance import (
    acknowledged_ids,
    broken_connections,
    conflicting_ids,
    inconsistent_replays,
    lost_responses,
)
from chaos.clients.client import ENDPOINT, PAUSE_S, RETRYABLE_STATUSES, Client, input_lines
from chaos.drills.another_tenant import another_tenant
from chaos.drills.context import MODEL, DrillContext
from chaos.drills.killed_commits import CommitKiller, slow_commits
from chaos.errors import DrillError
from chaos.reports.measures import Measure

TOLD_S_MAX: Final = 240.0
THREADS: Final = 50
TOGETHER: Final = 8


def run(context: DrillContext) -> Iterator[Measure]:
    """Create jobs under shared keys and judge what exists afterwards."""
    keys = context.size(200, 40)
    until_s = time.monotonic() + TOLD_S_MAX
    mark = f"p5-{context.seed}"
    client = context.client("p5")
    file_id = client.upload(f"file-{mark}", input_lines(1, MODEL), until_s)
    answered: list[str] = []
    with (
        slow_commits(context.installation.engine),
        CommitKiller(context, answered, THREADS * keys) as killing,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        walks = [
            pool.submit(_walk, context, number, mark, keys, file_id, answered)
            for number in range(THREADS)
        ]
        for walk in walks:
            walk.result()
    history = context.recorder.operations()
    broken, lost = broken_connections(history), len(lost_responses(history))
    context.note(f"{killing.count} kills, {broken} connections broken, {lost} first answers lost")
    replays = inconsistent_replays(history)
    made, ids = _count(context, mark), acknowledged_ids(history)
    found = [
        _measure("jobs beyond or short of one a key", abs(made - keys), keys),
        Measure(
            promise="P5",
            what="keys whose answers are not one answer and its replays",
            value=len(replays),
            size=len(answered),
            evidence=str(list(replays.items())[:3]) if replays else "",
        ),
        Measure(
            promise="P5",
            what="jobs whose own answer a kill took away",
            value=lost,
            relation="report",
            size=broken,
        ),
        _measure("keys answered with different ids", len(conflicting_ids(history)), len(ids)),
    ]
    is_tried = killing.count and broken and lost
    if not is_tried and not any(measure.is_violation for measure in found):
        raise DrillError("no kill fell between a commit and its answer")
    yield from found
    reused = _misuse(client, mark, keys, file_id)
    yield _measure("changed bodies that were not refused with 422", reused, keys)
    failures = sum(
        step.detail.get("status", 0) >= HTTPStatus.INTERNAL_SERVER_ERROR
        and step.detail["status"] != HTTPStatus.SERVICE_UNAVAILABLE
        for step in context.recorder.operations()
    )
    yield _measure("answers 5xx other than 503", failures, len(ids))
    others, forms = _others(context, mark), _wrong_forms(client, mark, file_id)
    yield _measure("jobs of another tenant's same keys that were not new", others, 3)
    yield _measure("keys of a wrong form that were let in", forms, 3)


def _walk(
    context: DrillContext, number: int, mark: str, keys: int, file_id: str, answered: list[str]
) -> None:
    """Ask with every key, a few at a time in an order of its own; add each that was answered.

    All threads come to a key at about the same time, so that keys are new until the end.
    """
    chance = random.Random(f"{context.seed}-{number}")
    few = [range(first, min(first + TOGETHER, keys)) for first in range(0, keys, TOGETHER)]
    order = [key for some in few for key in chance.sample(some, len(some))]
    client = context.client(f"p5-{number}")
    until_s = time.monotonic() + TOLD_S_MAX
    for key in order:
        answered.append(
            client.create(f"{mark}-{key}", file_id, until_s, metadata={"drill": mark})["id"]
        )


def _misuse(client: Client, mark: str, keys: int, file_id: str) -> int:
    """Return how many keys took another body."""
    changed = {"drill": f"{mark}x"}
    answers = (_told(client, f"{mark}-{key}", file_id, changed) for key in range(keys))
    return sum(answer.status_code != HTTPStatus.UNPROCESSABLE_ENTITY for answer in answers)


def _others(context: DrillContext, mark: str) -> int:
    """Return how many keys of another tenant met a job of ours."""
    other = another_tenant(context, "p5-other")
    ours = set(acknowledged_ids(context.recorder.operations()).values())
    content = input_lines(1, MODEL)
    file_id = other.upload(f"other-file-{mark}", content, time.monotonic() + TOLD_S_MAX)
    wrong = 0
    for key in range(3):
        answer = _told(other, f"{mark}-{key}", file_id, {"drill": f"{mark}-other"})
        wrong += not answer.is_success or answer.json()["id"] in ours
    return wrong


def _wrong_forms(client: Client, mark: str, file_id: str) -> int:
    """Return how many keys of a wrong form were accepted, or right ones refused."""
    wants = {"": False, f"{mark}-".ljust(255, "k"): True, f"{mark}-".ljust(256, "k"): False}
    form = {"drill": f"{mark}-form"}
    return sum(_told(client, key, file_id, form).is_success != good for key, good in wants.items())


def _told(client: Client, key: str, file_id: str, metadata: dict[str, str]) -> httpx.Response:
    """Ask until there is an answer that another try would not change. Raises DrillError."""
    body = {
        "input_file_id": file_id,
        "endpoint": ENDPOINT,
        "completion_window": "24h",
        "metadata": metadata,
    }
    until_s = time.monotonic() + TOLD_S_MAX
    while time.monotonic() < until_s:
        answer = client.call("POST", "/v1/batches", {"idempotency-key": key}, json=body)
        if answer is not None:
            if answer.status_code not in RETRYABLE_STATUSES:
                return answer
            client.recorder.record(client.name, "create", key, "fail", status=answer.status_code)
        time.sleep(PAUSE_S)
    raise DrillError("a creation under a used or odd key: no answer in time")


def _count(context: DrillContext, mark: str) -> int:
    with context.installation.engine.connect() as connection:
        query = sa.text("SELECT count(*) FROM jobs WHERE metadata ->> 'drill' = :mark")
        return int(connection.execute(query, {"mark": mark}).scalar_one())


def _measure(what: str, value: float, size: int) -> Measure:
    return Measure(promise="P5", what=what, value=value, size=size)
