"""P7 and P8: jobs that are cancelled or expire in the middle, before an upstream that notes all."""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import sqlalchemy as sa

from chaos.checkers.answers import is_echoed
from chaos.checkers.end_states import CANCEL_ASKED, CANCELLED, EXPIRING
from chaos.checkers.executions import Start, began_after, latest_s
from chaos.clients.client import CancelAnswer, Client, input_lines
from chaos.drills.context import Setting
from chaos.errors import DrillError
from chaos.faults.healing import missed
from chaos.faults.processes import kill
from chaos.installations.hosts import wait_until
from chaos.installations.settings import SESSION_S
from chaos.observations import database
from chaos.observations.database import Files
from chaos.reports.measures import Measure
from chaos.verification.partial_results import by_number, judge_kept
from chaos.verification.reconciliation import Ended, judge_books

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


def cancel(setting: Setting) -> list[Measure]:
    """Cancel many jobs, each at its own moment; in half of the rounds the worker dies meanwhile."""
    chance = random.Random(setting.seed)
    kills = setting.seed % 2 == 1
    group = f"cancel-{setting.seed}"
    client, engine = setting.client(group), setting.running.engine
    until_s = time.monotonic() + TOLD_S_MAX
    size = setting.size(*CANCELLED_ITEMS)
    moments = {n: chance.randrange(1, size // 2) for n in range(setting.size(40, 10))}
    moments[0] = size // 2  # so that much of one has finished by then
    files = {n: _upload(client, group, n, size, until_s) for n in moments}
    ids = {n: client.create(f"{group}-{n}", file_id, until_s)["id"] for n, file_id in files.items()}
    if kills:
        setting.note("with kills of the worker")
    asked, deaths_s = _cancel_each(setting, group, moments, ids, kills=kills)
    if kills and not deaths_s:
        raise DrillError("the worker was never there to be killed")
    last_s = max(answer.at_s for answer in asked.values())
    ended = database.all_ended(engine, client, ids.values(), until_s)
    _await_silence(setting, last_s, deaths_s)
    by_job = by_number(setting.starts(group)())
    refusals = _judge_refusals(engine, asked, ids)
    measures: list[Measure] = []
    closed_s: dict[int, float] = {}
    for number, answer in asked.items():
        if answer.refused:
            setting.note(f"{ids[number]} had ended when its cancel came: no trial")
            continue
        closed_s[number] = answer.at_s
        ended_s = database.ended_s(engine, ids[number], "cancelled")
        status = ended[ids[number]]["status"]
        measures += [
            Measure(
                promise="P7",
                what="from cancel to the last item that began",
                unit="s",
                value=round(latest_s(by_job[number], answer.at_s), 2),
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
    if not closed_s and not refusals.breaks_a_promise:
        raise DrillError("every job had ended before its cancel")
    outputs = {number: Files(client, ended[ids[number]]).output for number in closed_s}
    kept = judge_kept(setting, "P7", group, closed_s, outputs, deaths_s)
    books = [
        Ended(
            ended[job_id],
            size,
            CANCEL_ASKED if asked[number].refused else CANCELLED,
            _content(group, number, size),
            is_echoed,
        )
        for number, job_id in ids.items()
    ]
    return [refusals, *measures, kept, *judge_books(engine, client, books)]


def _cancel_each(
    setting: Setting, group: str, moments: Mapping[int, int], ids: Mapping[int, str], *, kills: bool
) -> tuple[dict[int, CancelAnswer], list[float]]:
    """Cancel each job once so many of its items have begun; return the answers, and the kills."""
    client = setting.client(f"{group}-cancels")
    until_s = time.monotonic() + TOLD_S_MAX
    seen = setting.starts(group)
    asked: dict[int, Future[CancelAnswer]] = {}
    deaths_s: list[float] = []

    def all_asked() -> bool:
        by_job = by_number(seen())
        for number, moment in moments.items():
            if number not in asked and len(by_job[number]) >= moment:
                asked[number] = pool.submit(client.ask_cancel, ids[number], until_s)
                is_due = kills and len(asked) % CANCELS_FOR_A_KILL == CANCELS_FOR_A_KILL // 2
                # A replica that starts again from the last kill is not there for this one.
                if is_due and kill(setting.running, REPLICA) is not missed:
                    deaths_s.append(time.time())  # later than what was answered before
        return len(asked) == len(moments)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:  # none waits for another's answer
        wait_until(all_asked, TOLD_S_MAX, "progress")
        return {number: answer.result() for number, answer in asked.items()}, deaths_s


def _await_silence(setting: Setting, close_s: float, deaths_s: Sequence[float]) -> None:
    """Wait until nothing of closed jobs may begin, and what was killed would have begun it."""
    if deaths_s:
        host, _, role = REPLICA.partition("/")
        setting.running.hosts[host].pid(role, TOLD_S_MAX)
        time.sleep(2 * SESSION_S)  # it joins, and meets what lay on its partitions
    time.sleep(max(0.0, close_s + CANCEL_S_MAX - time.time()))


def _judge_refusals(
    engine: sa.Engine, asked: Mapping[int, CancelAnswer], ids: Mapping[int, str]
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


def expire(setting: Setting) -> list[Measure]:
    """Let jobs of the shortest window expire together."""
    group = f"expire-{setting.seed}"
    client, engine = setting.client("expiring"), setting.running.engine
    until_s = time.monotonic() + TOLD_S_MAX
    numbers = range(setting.size(25, 10))
    size = EXPIRING_ITEMS // len(numbers)
    # All at once: one that begins seconds before the others may have ended when they expire.
    files = {n: _upload(client, group, n, size, until_s) for n in numbers}
    ids, due_s, due_from_s = {}, {}, {}
    window = f"{WINDOW_S}s"
    for n, file_id in files.items():
        due_from_s[n] = time.time() + WINDOW_S  # the window begins within the call
        job = client.create(f"{group}-{n}", file_id, until_s, completion_window=window)
        ids[n], due_s[n] = job["id"], time.time() + WINDOW_S
    ended = database.all_ended(engine, client, ids.values(), until_s)
    _await_silence(setting, max(due_s.values()), ())
    by_job = by_number(setting.starts(group)())
    measures: list[Measure] = []
    expired_s: dict[int, float] = {}
    outputs = {}
    for number, at_s in due_s.items():
        done = ended[ids[number]]
        if _is_in_time(engine, done, by_job[number], at_s):
            setting.note(f"{done['id']} completed within its window: no trial")
            continue
        files_of = Files(client, done)
        outputs[number], expired_s[number] = files_of.output, due_from_s[number]
        measures += _judge_expiry(engine, done, by_job[number], files_of, at_s)
        measures.append(_judge_window(engine, done, due_from_s[number]))
    if not expired_s:
        raise DrillError("every job completed within its window: none expired")
    kept = judge_kept(setting, "P8", group, expired_s, outputs)
    books = [
        Ended(ended[job_id], size, EXPIRING, _content(group, number, size), is_echoed)
        for number, job_id in ids.items()
    ]
    return [*measures, kept, *judge_books(engine, client, books)]


def _is_in_time(
    engine: sa.Engine, done: Mapping[str, Any], starts: Sequence[Start], due_s: float
) -> bool:
    """Whether a job had nothing left to run when its window was over."""
    if done["status"] != "completed" or began_after(starts, due_s):
        return False
    return database.ended_s(engine, done["id"]) <= due_s + TERMINAL_S_MAX


def _judge_expiry(
    engine: sa.Engine, done: Mapping[str, Any], starts: Sequence[Start], files: Files, due_s: float
) -> list[Measure]:
    """Judge one job by the clock of who asked for its window."""
    codes = set(files.error_codes().values())
    after_s = database.ended_s(engine, done["id"], "expired") - due_s
    return [
        Measure(
            promise="P8",
            what="items that began after expires_at",
            value=len(began_after(starts, due_s)),
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
