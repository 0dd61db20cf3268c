"""P7 and P8: jobs that are cancelled or expire in the middle, before an upstream that notes all."""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import sqlalchemy as sa

from chaos.checkers.answers import is_echo_answer
from chaos.checkers.end_states import CANCELLED, MAY_BE_CANCELLED, MAY_EXPIRE
from chaos.checkers.executions import Start, seconds_to_last_start, started_after
from chaos.clients.client import CancelResponse, Client, input_lines
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import no_target
from chaos.faults.processes import kill
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.database import JobFiles
from chaos.reports.measures import Measure
from chaos.verification.partial_results import check_partial_results, group_by_job
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

CANCEL_S_MAX: Final = 5.0
TERMINAL_S_MAX: Final = 30.0
TOLD_S_MAX: Final = 240.0
WINDOW_S: Final = 30
REPLICA: Final = "a/gpu-consumer"
MODEL: Final = "small"
CANCELLED_ITEMS: Final = (200, 400)
"""Of each job of a long run and a quick one, whose few jobs would else be over too soon."""

EXPIRING_ITEMS: Final = 20_000
"""Of all jobs that expire together: more than run within the window."""

CANCELS_FOR_A_KILL: Final = 10
ASKED_AT_ONCE: Final = 8


def cancel(context: DrillContext) -> list[Measure]:
    """Cancel many jobs, each at its own moment; in half of the rounds the worker dies meanwhile."""
    chance = random.Random(context.seed)
    kills = context.seed % 2 == 1
    group = f"cancel-{context.seed}"
    client, engine = context.client(group), context.installation.engine
    until_s = time.monotonic() + TOLD_S_MAX
    size = context.size(*CANCELLED_ITEMS)
    moments = {n: chance.randrange(1, size // 2) for n in range(context.size(40, 10))}
    moments[0] = size // 2  # so that much of one has finished by then
    files = {n: _upload(client, group, n, size, until_s) for n in moments}
    ids = {n: client.create(f"{group}-{n}", file_id, until_s)["id"] for n, file_id in files.items()}
    if kills:
        context.note("with kills of the worker")
    asked, deaths_s = _cancel_each(context, group, moments, ids, kills=kills)
    if kills and not deaths_s:
        raise DrillError("the worker was never there to be killed")
    last_s = max(answer.at_s for answer in asked.values())
    ended = database.await_jobs(engine, client, ids.values(), until_s)
    _await_silence(context, last_s, deaths_s)
    by_job = group_by_job(context.starts(group)())
    refusals = _judge_refusals(engine, asked, ids)
    measures: list[Measure] = []
    closed_s: dict[int, float] = {}
    for number, answer in asked.items():
        if answer.refused:
            context.note(f"{ids[number]} had ended when its cancel came: no trial")
            continue
        closed_s[number] = answer.at_s
        ended_s = database.ended_s(engine, ids[number], "cancelled")
        status = ended[ids[number]]["status"]
        measures += [
            Measure(
                promise="P7",
                what="from cancel to the last item that began",
                unit="s",
                value=round(seconds_to_last_start(by_job[number], answer.at_s), 2),
                limit=CANCEL_S_MAX,
                size=len(by_job[number]),
            ),
            Measure(
                promise="P7",
                what="from cancel until terminal",
                unit="s",
                value=max(0.0, round(ended_s - answer.at_s, 2)),
                limit=TERMINAL_S_MAX,
                evidence="" if status == "cancelled" else status,
            ),
        ]
    if not closed_s and not refusals.is_violation:
        raise DrillError("every job had ended before its cancel")
    outputs = {number: JobFiles(client, ended[ids[number]]).output for number in closed_s}
    kept = check_partial_results(context, "P7", group, closed_s, outputs, deaths_s)
    books = [
        EndedJob(
            ended[job_id],
            size,
            MAY_BE_CANCELLED if asked[number].refused else CANCELLED,
            _content(group, number, size),
            is_echo_answer,
        )
        for number, job_id in ids.items()
    ]
    return [refusals, *measures, kept, *reconcile_jobs(engine, client, books)]


def _cancel_each(
    context: DrillContext,
    group: str,
    moments: Mapping[int, int],
    ids: Mapping[int, str],
    *,
    kills: bool,
) -> tuple[dict[int, CancelResponse], list[float]]:
    """Cancel each job once so many of its items have begun; return the answers, and the kills."""
    client = context.client(f"{group}-cancels")
    until_s = time.monotonic() + TOLD_S_MAX
    seen = context.starts(group)
    asked: dict[int, Future[CancelResponse]] = {}
    deaths_s: list[float] = []

    def all_asked() -> bool:
        by_job = group_by_job(seen())
        for number, moment in moments.items():
            if number not in asked and len(by_job[number]) >= moment:
                asked[number] = pool.submit(client.request_cancel, ids[number], until_s)
                is_due = kills and len(asked) % CANCELS_FOR_A_KILL == CANCELS_FOR_A_KILL // 2
                # A replica that starts again from the last kill is not there for this one.
                if is_due and kill(context.installation, REPLICA) is not no_target:
                    deaths_s.append(time.time())  # later than what was answered before
        return len(asked) == len(moments)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:  # none waits for another's answer
        wait_until(all_asked, TOLD_S_MAX, "progress")
        return {number: answer.result() for number, answer in asked.items()}, deaths_s


def _await_silence(context: DrillContext, close_s: float, deaths_s: Sequence[float]) -> None:
    """Wait until nothing of closed jobs may begin, and what was killed would have begun it."""
    if deaths_s:
        host, _, role = REPLICA.partition("/")
        context.installation.hosts[host].pid(role, TOLD_S_MAX)
        time.sleep(2 * SESSION_S)  # it joins, and meets what lay on its partitions
    time.sleep(max(0.0, close_s + CANCEL_S_MAX - time.time()))


def _judge_refusals(
    engine: sa.Engine, asked: Mapping[int, CancelResponse], ids: Mapping[int, str]
) -> Measure:
    """A cancel may be refused of a job only that had ended when the answer came."""
    wrong = [
        ids[number]
        for number, answer in asked.items()
        if answer.refused and database.ended_s(engine, ids[number]) > answer.at_s
    ]
    return Measure(
        promise="P7",
        what="cancels of running jobs that were refused",
        value=len(wrong),
        size=len(asked),
        evidence=" ".join(wrong[:5]),
    )


def expire(context: DrillContext) -> list[Measure]:
    """Let jobs of the shortest window expire together."""
    group = f"expire-{context.seed}"
    client, engine = context.client("expiring"), context.installation.engine
    until_s = time.monotonic() + TOLD_S_MAX
    numbers = range(context.size(25, 10))
    size = EXPIRING_ITEMS // len(numbers)
    # All at once: one that begins seconds before the others may have ended when they expire.
    files = {n: _upload(client, group, n, size, until_s) for n in numbers}
    ids, due_s, due_from_s = {}, {}, {}
    window = f"{WINDOW_S}s"
    for n, file_id in files.items():
        due_from_s[n] = time.time() + WINDOW_S  # the window begins within the call
        job = client.create(f"{group}-{n}", file_id, until_s, completion_window=window)
        ids[n], due_s[n] = job["id"], time.time() + WINDOW_S
    ended = database.await_jobs(engine, client, ids.values(), until_s)
    _await_silence(context, max(due_s.values()), ())
    by_job = group_by_job(context.starts(group)())
    measures: list[Measure] = []
    expired_s: dict[int, float] = {}
    outputs = {}
    for number, at_s in due_s.items():
        done = ended[ids[number]]
        if _is_in_time(engine, done, by_job[number], at_s):
            context.note(f"{done['id']} completed within its window: no trial")
            continue
        files_of = JobFiles(client, done)
        outputs[number], expired_s[number] = files_of.output, due_from_s[number]
        measures += _judge_expiry(engine, done, by_job[number], files_of, at_s)
        measures.append(_judge_window(engine, done, due_from_s[number]))
    if not expired_s:
        raise DrillError("every job completed within its window: none expired")
    kept = check_partial_results(context, "P8", group, expired_s, outputs)
    books = [
        EndedJob(ended[job_id], size, MAY_EXPIRE, _content(group, number, size), is_echo_answer)
        for number, job_id in ids.items()
    ]
    return [*measures, kept, *reconcile_jobs(engine, client, books)]


def _is_in_time(
    engine: sa.Engine, done: Mapping[str, Any], starts: Sequence[Start], due_s: float
) -> bool:
    """Whether a job had nothing left to run when its window was over."""
    if done["status"] != "completed" or started_after(starts, due_s):
        return False
    return database.ended_s(engine, done["id"]) <= due_s + TERMINAL_S_MAX


def _judge_expiry(
    engine: sa.Engine,
    done: Mapping[str, Any],
    starts: Sequence[Start],
    files: JobFiles,
    due_s: float,
) -> list[Measure]:
    """Judge one job by the clock of who asked for its window."""
    codes = set(files.error_codes().values())
    after_s = database.ended_s(engine, done["id"], "expired") - due_s
    return [
        Measure(
            promise="P8",
            what="items that began after expires_at",
            value=len(started_after(starts, due_s)),
            size=len(starts),
        ),
        Measure(
            promise="P8",
            what="from expires_at until terminal",
            unit="s",
            value=max(0.0, round(after_s, 2)),
            limit=TERMINAL_S_MAX,
            evidence="" if done["status"] == "expired" else done["status"],
        ),
        Measure(
            promise="P8",
            what="codes of unfinished items other than batch_expired",
            value=len(codes - {"batch_expired"}),
            evidence=str(sorted(codes)),
        ),
    ]


def _judge_window(engine: sa.Engine, done: Mapping[str, Any], due_from_s: float) -> Measure:
    early_s = due_from_s - database.ended_s(engine, done["id"], "expired")
    return Measure(
        promise="P8",
        what="from an expiry to the end of its window",
        unit="s",
        value=max(0.0, round(early_s, 2)),
    )


def _upload(client: Client, group: str, number: int, count: int, until_s: float) -> str:
    return client.upload(f"file-{group}-{number}", _content(group, number, count), until_s)


def _content(group: str, number: int, count: int) -> bytes:
    """Return the file of a job whose items' texts are the group, its number, and their own."""
    texts = {item: f"{group} {number} {item}" for item in range(count)}
    return input_lines(count, MODEL, texts)
