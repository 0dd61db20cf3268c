"""P7 and P8: jobs that are cancelled or expire in the middle, before an upstream that notes all."""

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from chaos import evidence
from chaos.clients import Client, input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import Setting
from chaos.evidence import Files
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.judges.executions import Start, began_after, latest_s
from chaos.measures import Measure
from chaos.nemeses.processes import kill

CANCEL_S_MAX: Final = 5.0
TERMINAL_S_MAX: Final = 30.0
TOLD_S_MAX: Final = 240.0
MODEL: Final = "small"
CANCELLED_ITEMS: Final = 200
EXPIRING_ITEMS: Final = 20_000
"""Of all jobs that expire together: more than run within the window."""

CANCELS_FOR_A_KILL: Final = 10
ASKED_AT_ONCE: Final = 8


def cancel(setting: Setting) -> list[Measure]:
    """Cancel many jobs, each at its own moment; in half of the rounds the worker dies meanwhile."""
    chance = random.Random(setting.seed)
    kills = setting.seed % 2 == 1
    group = f"cancel-{setting.seed}"
    client = setting.client(group)
    until_s = time.monotonic() + TOLD_S_MAX
    numbers = range(setting.size(40, 10))
    moments = {number: chance.randrange(1, CANCELLED_ITEMS // 2) for number in numbers}
    files = {n: _upload(client, group, n, CANCELLED_ITEMS, until_s) for n in moments}
    ids = {n: client.create(f"{group}-{n}", file_id, until_s)["id"] for n, file_id in files.items()}
    if kills:
        setting.note("with kills of the worker")
    cancelled_s = _cancel_each(setting, group, moments, ids, kills=kills)
    ended = evidence.all_ended(setting.running.engine, client, ids.values(), until_s)
    by_job = starts_by_job(setting.starts(group)())
    measures = []
    for number, at_s in cancelled_s.items():
        job = ended[ids[number]]
        if at_s is None:
            setting.note(f"{job['id']} had ended when its cancel came: no trial")
            continue
        terminal_s = evidence.cancelled_s(setting.running.engine, job["id"]) - at_s
        measures += [
            Measure(
                promise="P7",
                what="from cancel to the last item that began",
                unit="s",
                value=round(latest_s(by_job[number], at_s), 2),
                limit=CANCEL_S_MAX,
                size=len(by_job[number]),
            ),
            Measure(
                promise="P7",
                what="from cancel until terminal",
                unit="s",
                value=max(0.0, round(terminal_s, 2)),
                limit=TERMINAL_S_MAX,
                evidence="" if job["status"] == "cancelled" else job["status"],
            ),
        ]
    if not measures:
        raise DrillError("every job had ended before its cancel")
    books = [Ended(job, CANCELLED_ITEMS) for job in ended.values()]
    return [*measures, *judge_books(setting.running.engine, client, books)]


def _cancel_each(
    setting: Setting, group: str, moments: Mapping[int, int], ids: Mapping[int, str], *, kills: bool
) -> dict[int, float | None]:
    """Cancel each job once so many of its items have begun; return when each was answered.

    None: it had ended by then.
    """
    client = setting.client(f"{group}-cancels")
    until_s = time.monotonic() + TOLD_S_MAX
    seen = setting.starts(group)
    asked: dict[int, Future[float | None]] = {}

    def all_asked() -> bool:
        by_job = starts_by_job(seen())
        for number, moment in moments.items():
            if number not in asked and len(by_job[number]) >= moment:
                asked[number] = pool.submit(client.cancel, ids[number], until_s)
                if kills and len(asked) % CANCELS_FOR_A_KILL == CANCELS_FOR_A_KILL // 2:
                    kill(setting.running, "a/gpu-consumer")
        return len(asked) == len(moments)

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:  # none waits for another's answer
        wait_until(all_asked, TOLD_S_MAX, "progress")
        return {number: answer.result() for number, answer in asked.items()}


def expire(setting: Setting) -> list[Measure]:
    """Let jobs of the shortest window expire together."""
    group = f"expire-{setting.seed}"
    client = setting.client("expiring")
    until_s = time.monotonic() + TOLD_S_MAX
    numbers = range(setting.size(25, 10))
    size = EXPIRING_ITEMS // len(numbers)
    # All at once: one that begins seconds before the others may have ended when they expire.
    files = {n: _upload(client, group, n, size, until_s) for n in numbers}
    ids = {
        n: client.create(f"{group}-{n}", file_id, until_s, completion_window="30s")["id"]
        for n, file_id in files.items()
    }
    ended = evidence.all_ended(setting.running.engine, client, ids.values(), until_s)
    by_job = starts_by_job(setting.starts(group)())
    measures = []
    for number, job_id in ids.items():
        done, due_s = ended[job_id], evidence.deadline_s(setting.running.engine, job_id)
        codes = set(Files(client, done).error_codes().values())
        ended_at = done.get("expired_at") or done.get("completed_at")  # the first may be done
        ended_s = ended_at - due_s if ended_at else float("inf")
        measures += [
            Measure(
                promise="P8",
                what="items that began after expires_at",
                value=len(began_after(by_job[number], due_s)),
                size=len(by_job[number]),
            ),
            Measure(
                promise="P8",
                what="from expires_at until terminal",
                unit="s",
                value=max(0.0, round(ended_s, 2)),
                limit=TERMINAL_S_MAX,
            ),
            Measure(
                promise="P8",
                what="codes of unfinished items other than batch_expired",
                value=len(codes - {"batch_expired"}),
                evidence=str(sorted(codes)),
            ),
        ]
    books = [Ended(job, size) for job in ended.values()]
    return [*measures, *judge_books(setting.running.engine, client, books)]


def _upload(client: Client, group: str, number: int, count: int, until_s: float) -> str:
    """Upload the file of a job whose items' texts are the group, its number, and their own."""
    texts = {item: f"{group} {number} {item}" for item in range(count)}
    content = input_lines(count, MODEL, texts)
    return client.upload(f"file-{group}-{number}", content, until_s)


def starts_by_job(starts: Iterable[Start]) -> defaultdict[int, list[Start]]:
    """Return the executions of each job of a group, by the number in the texts of its items."""
    found: defaultdict[int, list[Start]] = defaultdict(list)
    for start in starts:
        found[int(start.item.split(" ")[1])].append(start)
    return found
