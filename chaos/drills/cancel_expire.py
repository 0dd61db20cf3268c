"""P7 and P8: jobs that are cancelled or expire while an upstream records all executions."""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import sqlalchemy as sa

from chaos.checkers.end_states import CANCELLED, MAY_BE_CANCELLED, MAY_EXPIRE
from chaos.checkers.executions import (
    ItemEvent,
    finished_before,
    group_by_job,
    output_mismatches,
    seconds_to_last_start,
    started_after,
)
from chaos.checkers.results import is_echo_answer
from chaos.clients.client import CancelResponse, Client, input_lines
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.faults.healing import no_target
from chaos.faults.processes import kill_role
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.measures import Measure, duration, violations
from chaos.observations import database
from chaos.verification.reconciliation import EndedJob, JobFiles, reconcile_jobs

CANCEL_S_MAX: Final = 5.0
TERMINAL_S_MAX: Final = 30.0
JOB_S_MAX: Final = 240.0
COMMIT_S_MAX: Final = 2.0
"""Time from an answer until replica and writer have committed it, with a large margin.

A younger item may count as unfinished when its job ends."""

WINDOW_S: Final = 30
REPLICA: Final = "a/gpu-consumer"
MODEL: Final = "small"
CANCELLED_ITEMS: Final = (200, 400)
"""Of each job of a long run and a quick one; a quick run has few jobs, which need more items."""

EXPIRING_ITEMS: Final = 20_000
"""Of all jobs that expire together: more than run within the window."""

CANCELS_PER_KILL: Final = 10
CONCURRENT_CANCELS: Final = 8


def cancel(context: DrillContext) -> list[Measure]:
    """Cancel many jobs, each at its own moment; in every other round the worker is killed."""
    chance = random.Random(context.seed)
    kills = context.seed % 2 == 1
    group = f"cancel-{context.seed}"
    client, engine = context.client(group), context.engine
    until_s = time.monotonic() + JOB_S_MAX
    size = context.size(*CANCELLED_ITEMS)
    moments = {n: chance.randrange(1, size // 2) for n in range(context.size(40, 10))}
    moments[0] = size // 2  # so that much of one job has finished
    files = {n: _upload(client, group, n, size, until_s) for n in moments}
    ids = {n: client.create(f"{group}-{n}", file_id, until_s)["id"] for n, file_id in files.items()}
    if kills:
        context.note("with kills of the worker")
    responses, deaths_s = _cancel_each(context, group, moments, ids, kills=kills)
    if kills and not deaths_s:
        raise DrillError("the worker was never up when a kill was due")
    last_s = max(response.at_s for response in responses.values())
    ended = database.await_jobs(engine, client, ids.values(), until_s)
    _await_quiet(context, last_s, deaths_s)
    by_job = group_by_job(context.starts(group)())
    refusals = _check_refusals(engine, responses, ids)
    measures: list[Measure] = []
    closed_s: dict[int, float] = {}
    for number, response in responses.items():
        if response.is_refused:
            context.note(f"{ids[number]} had ended when its cancel came: no trial")
            continue
        closed_s[number] = response.at_s
        ended_s = database.ended_s(engine, ids[number], "cancelled")
        status, starts = ended[ids[number]]["status"], by_job[number]
        last_s = seconds_to_last_start(starts, response.at_s)
        took_s = max(0.0, ended_s - response.at_s)
        other = "" if status == "cancelled" else status
        what = "from cancel to the last item that began"
        measures += [
            duration("P7", what, last_s, CANCEL_S_MAX, size=len(starts)),
            duration("P7", "from cancel until terminal", took_s, TERMINAL_S_MAX, evidence=other),
        ]
    if not closed_s and not refusals.is_violation:
        raise DrillError("every job had ended before its cancel")
    outputs = {number: JobFiles(client, ended[ids[number]]).output for number in closed_s}
    kept = _check_partial_results(context, "P7", group, closed_s, outputs, deaths_s)
    ended_jobs = [
        EndedJob(
            ended[job_id],
            size,
            MAY_BE_CANCELLED if responses[number].is_refused else CANCELLED,
            _content(group, number, size),
            is_echo_answer,
        )
        for number, job_id in ids.items()
    ]
    return [refusals, *measures, kept, *reconcile_jobs(engine, client, ended_jobs)]


def _cancel_each(
    context: DrillContext,
    group: str,
    moments: Mapping[int, int],
    ids: Mapping[int, str],
    *,
    kills: bool,
) -> tuple[dict[int, CancelResponse], list[float]]:
    """Cancel each job once enough of its items have started; return responses and kill times."""
    client = context.client(f"{group}-cancels")
    until_s = time.monotonic() + JOB_S_MAX
    seen = context.starts(group)
    responses: dict[int, Future[CancelResponse]] = {}
    deaths_s: list[float] = []

    def all_cancelled() -> bool:
        by_job = group_by_job(seen())
        for number, moment in moments.items():
            if number not in responses and len(by_job[number]) >= moment:
                responses[number] = pool.submit(client.cancel, ids[number], until_s)
                is_due = kills and len(responses) % CANCELS_PER_KILL == CANCELS_PER_KILL // 2
                # A replica that is still restarting cannot be killed again.
                if is_due and kill_role(context.installation, REPLICA) is not no_target:
                    deaths_s.append(time.time())  # after any response that preceded the kill
        return len(responses) == len(moments)

    with ThreadPoolExecutor(CONCURRENT_CANCELS) as pool:  # so that no cancel delays another
        wait_until(all_cancelled, JOB_S_MAX, "progress")
        return {number: response.result() for number, response in responses.items()}, deaths_s


def _await_quiet(context: DrillContext, close_s: float, deaths_s: Sequence[float]) -> None:
    """Wait until executions of closed jobs must have stopped, after any restart of the replica."""
    if deaths_s:
        host, _, role = REPLICA.partition("/")
        context.installation.hosts[host].pid(role, JOB_S_MAX)
        time.sleep(2 * SESSION_S)  # it joins, and reads the records of its partitions
    time.sleep(max(0.0, close_s + CANCEL_S_MAX - time.time()))


def _check_refusals(
    engine: sa.Engine, responses: Mapping[int, CancelResponse], ids: Mapping[int, str]
) -> Measure:
    """A cancellation may be refused only for a job that had ended by the response."""
    wrong = [
        ids[number]
        for number, response in responses.items()
        if response.is_refused and database.ended_s(engine, ids[number]) > response.at_s
    ]
    return violations("P7", "cancels of running jobs that were refused", wrong, size=len(responses))


def expire(context: DrillContext) -> list[Measure]:
    """Let jobs with the shortest window expire together."""
    group = f"expire-{context.seed}"
    client, engine = context.client("expiring"), context.engine
    until_s = time.monotonic() + JOB_S_MAX
    numbers = range(context.size(25, 10))
    size = EXPIRING_ITEMS // len(numbers)
    # Uploaded first and created together: a job that starts early may complete in its window.
    files = {n: _upload(client, group, n, size, until_s) for n in numbers}
    ids, due_s, due_from_s = {}, {}, {}
    window = f"{WINDOW_S}s"
    for n, file_id in files.items():
        due_from_s[n] = time.time() + WINDOW_S  # the window starts within the call
        job = client.create(f"{group}-{n}", file_id, until_s, completion_window=window)
        ids[n], due_s[n] = job["id"], time.time() + WINDOW_S
    ended = database.await_jobs(engine, client, ids.values(), until_s)
    _await_quiet(context, max(due_s.values()), ())
    by_job = group_by_job(context.starts(group)())
    measures: list[Measure] = []
    expired_s: dict[int, float] = {}
    outputs = {}
    for number, at_s in due_s.items():
        job = ended[ids[number]]
        if _is_completed_in_time(engine, job, by_job[number], at_s):
            context.note(f"{job['id']} completed within its window: no trial")
            continue
        files_of = JobFiles(client, job)
        outputs[number], expired_s[number] = files_of.output, due_from_s[number]
        measures += _check_expiry(engine, job, by_job[number], files_of, due_from_s[number], at_s)
    if not expired_s:
        raise DrillError("every job completed within its window: none expired")
    kept = _check_partial_results(context, "P8", group, expired_s, outputs)
    ended_jobs = [
        EndedJob(ended[job_id], size, MAY_EXPIRE, _content(group, number, size), is_echo_answer)
        for number, job_id in ids.items()
    ]
    return [*measures, kept, *reconcile_jobs(engine, client, ended_jobs)]


def _is_completed_in_time(
    engine: sa.Engine, job: Mapping[str, Any], starts: Sequence[ItemEvent], due_s: float
) -> bool:
    """Return whether a job completed within its window."""
    if job["status"] != "completed" or started_after(starts, due_s):
        return False
    return database.ended_s(engine, job["id"]) <= due_s + TERMINAL_S_MAX


def _check_expiry(
    engine: sa.Engine,
    job: Mapping[str, Any],
    starts: Sequence[ItemEvent],
    files: JobFiles,
    due_from_s: float,
    due_s: float,
) -> list[Measure]:
    """Check one job by the clock of the client that set its window.

    The window ends between `due_from_s` and `due_s`.
    """
    late = [start.item for start in started_after(starts, due_s)]
    codes = sorted(set(files.error_codes().values()) - {"batch_expired"})
    ended_s = database.ended_s(engine, job["id"], "expired")
    status = "" if job["status"] == "expired" else job["status"]
    late_s, early_s = max(0.0, ended_s - due_s), max(0.0, due_from_s - ended_s)
    return [
        violations("P8", "items that began after expires_at", late, size=len(starts)),
        duration("P8", "from expires_at until terminal", late_s, TERMINAL_S_MAX, evidence=status),
        violations("P8", "codes of unfinished items other than batch_expired", codes, size=1),
        duration("P8", "from an expiry to the end of its window", early_s, 0.0),
    ]


def _check_partial_results(
    context: DrillContext,
    promise: str,
    group: str,
    closed_s: Mapping[int, float],
    outputs: Mapping[int, Sequence[Mapping[str, Any]]],
    deaths_s: Sequence[float] = (),
) -> Measure:
    """Compare output files with the answers that came before each job was closed."""
    by_job = group_by_job(context.recording().answers(group))
    checked = 0
    wrong: dict[str, str] = {}
    for number, moment_s in closed_s.items():
        answers = by_job[number]
        finished = finished_before(answers, moment_s, deaths_s, commit_s=COMMIT_S_MAX)
        output = {f"{group} {number} {line['custom_id'][5:]}" for line in outputs[number]}
        checked += len(finished)
        wrong |= output_mismatches(finished, {answer.item for answer in answers}, output)
    if not checked and not wrong:
        context.note(f"no item was answered {COMMIT_S_MAX:g} s before its job's end")
    what = "finished items that are not in the output file, or others that are"
    return violations(promise, what, wrong, size=checked)


def _upload(client: Client, group: str, number: int, count: int, until_s: float) -> str:
    return client.upload(f"file-{group}-{number}", _content(group, number, count), until_s)


def _content(group: str, number: int, count: int) -> bytes:
    """Return a job's input file; an item's text is the group, the job's number and its own."""
    texts = {item: f"{group} {number} {item}" for item in range(count)}
    return input_lines(count, MODEL, texts)
