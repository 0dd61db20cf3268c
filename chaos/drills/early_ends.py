"""P7 and P8: jobs that are cancelled or expire in the middle, before an upstream that notes all."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from chaos import evidence
from chaos.clients import Client, input_lines
from chaos.drills.books import Ended, judge_books
from chaos.drills.setting import Setting
from chaos.evidence import Files
from chaos.failures import DrillError
from chaos.hosts import wait_until
from chaos.judges.executions import latest_s
from chaos.measures import Measure
from chaos.nemeses.processes import kill

CANCEL_S_MAX: Final = 5.0
TERMINAL_S_MAX: Final = 30.0
TOLD_S_MAX: Final = 240.0
ITEMS: Final = 1500
EXPIRING_ITEMS: Final = 4000
MODEL: Final = "small"
AT_ONCE: Final = 3


def cancel(setting: Setting) -> list[Measure]:
    """Cancel a few jobs at random progress, with the worker killed in half of the rounds."""
    chance = random.Random(setting.seed)
    kills = setting.seed % 2 == 1
    plans = [
        (f"cancel-{setting.seed}-{number}", chance.randrange(1, ITEMS // 2))
        for number in range(AT_ONCE)
    ]
    if kills:
        setting.note("with kills of the worker")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda plan: _cancel_one(setting, *plan, kills=kills), plans))
    return [measure for measures in found for measure in measures]


def _cancel_one(setting: Setting, name: str, at: int, *, kills: bool) -> list[Measure]:
    client = setting.client(name)
    until_s = time.monotonic() + TOLD_S_MAX
    job = _create(client, name, ITEMS, until_s)
    seen = setting.starts(name)
    wait_until(lambda: len(seen()) >= at, TOLD_S_MAX, "progress")
    if kills:
        kill(setting.running, "a/gpu-consumer")
    cancelled_s = client.cancel(job["id"], until_s)
    done = _end(setting, client, job["id"], until_s)
    ended_s = time.time() - cancelled_s
    return [
        Measure(
            promise="P7",
            what="from cancel to the last item that began",
            unit="s",
            value=round(latest_s(seen(), cancelled_s), 2),
            limit=CANCEL_S_MAX,
            size=len(seen()),
        ),
        Measure(
            promise="P7",
            what="from cancel until terminal",
            unit="s",
            value=round(ended_s, 2),
            limit=TERMINAL_S_MAX,
            evidence="" if done["status"] == "cancelled" else done["status"],
        ),
        *judge_books(setting.running.engine, client, [Ended(done, ITEMS)]),
    ]


def expire(setting: Setting) -> list[Measure]:
    """Let jobs of the shortest window expire together."""
    names = [f"expire-{setting.seed}-{number}" for number in range(setting.size(10, 5))]
    client = setting.client("expiring")
    until_s = time.monotonic() + TOLD_S_MAX
    made = {name: _create(client, name, EXPIRING_ITEMS, until_s, "30s") for name in names}
    measures = []
    for name, job in made.items():
        due_s = evidence.deadline_s(setting.running.engine, job["id"])
        done = _end(setting, client, job["id"], until_s)
        codes = set(Files(client, done).error_codes().values())
        ended_s = done["expired_at"] - due_s if done.get("expired_at") else float("inf")
        measures += [
            Measure(
                promise="P8",
                what="items that began after expires_at",
                value=sum(start.at_s > due_s for start in setting.starts(name)()),
                size=len(setting.starts(name)()),
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
            *judge_books(setting.running.engine, client, [Ended(done, EXPIRING_ITEMS)]),
        ]
    return measures


def _create(
    client: Client, name: str, count: int, until_s: float, window: str = "24h"
) -> dict[str, Any]:
    texts = {number: f"{name} {number}" for number in range(count)}
    file_id = client.upload(f"file-{name}", input_lines(count, MODEL, texts), until_s)
    return client.create(name, file_id, until_s, completion_window=window)


def _end(setting: Setting, client: Client, job_id: str, until_s: float) -> dict[str, Any]:
    ended = client.await_ends([job_id], until_s)
    if not ended:
        raise DrillError(f"not terminal: {evidence.stuck(setting.running.engine)}")
    return ended[job_id]
