"""Jobs that end early, on a whole stack: cancels (P7) and expiries (P8), with their numbers.

A stack must run `openai_http` before a `RecordingUpstream`, which knows when each item began.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

from openai.types import Batch

from tests.support.job_checks import (
    ENDPOINT,
    assert_conserved,
    chat_line,
    ended,
    outcomes_of,
    watch,
)
from tests.support.recording_upstream import RecordingUpstream
from tests.support.stacks import Stack
from tests.support.until import until, until_found

CANCEL_S_MAX = 5.0
"""Longest time after a cancel in which an item may still start (P7)."""

TERMINAL_S_MAX = 30.0
"""After its close a job is terminal within this while workers live (P7, P8)."""

WINDOW_S = 30
SETTLE_S = 3.0
"""After this time without a start nothing more is expected to start."""

MODEL = "small"


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """The result of one run."""

    job: Batch
    ended_s: float  # from the cancel or the expiry to the terminal state
    late_s: float  # from there to the last item that began; negative when none began after it


def create(stack: Stack, name: str, count: int, **fields: Any) -> Batch:
    """Submit a job whose items' texts start with `name`; `fields` are of the request, also ours."""
    return start(stack, upload_items(stack, name, count), **fields)


def start(stack: Stack, file_id: str, **fields: Any) -> Batch:
    """Create the job of an uploaded file."""
    window = fields.pop("completion_window", "24h")
    return stack.client.batches.create(
        input_file_id=file_id, endpoint=ENDPOINT, completion_window=window, extra_body=fields
    )


def upload_items(stack: Stack, name: str, count: int) -> str:
    """Upload items whose texts start with `name`."""
    return upload(stack, b"".join(chat_line(n, MODEL, text=name) for n in range(count)))


def upload(stack: Stack, content: bytes) -> str:
    """Upload an input file."""
    return stack.client.files.create(file=("in.jsonl", content), purpose="batch").id


def progress(job: Batch) -> int:
    """Items that have ended."""
    return sum(outcomes_of(job).values())


def cancel_at_random(
    stack: Stack, upstream: RecordingUpstream, *, seed: int, count: int, kills: bool
) -> EarlyEnd:
    """Cancel a job at a seeded moment, perhaps kill its worker, and check what it is worth."""
    chance = random.Random(seed)
    name = f"cancel-{seed}"
    job = create(stack, name, count)
    at = chance.randrange(1, count // 2)
    watch(stack.client, job.id, lambda seen: progress(seen) >= at)
    if kills and chance.random() < 0.5:
        stack.kill("gpu-consumer")
    stack.client.batches.cancel(job.id)
    cancelled_s = time.time()
    if kills:
        stack.kill("gpu-consumer")
    done = watch(stack.client, job.id, ended)
    ended_s = time.time() - cancelled_s
    assert done.status == "cancelled", done
    wait_until_idle(stack, upstream, name)
    assert_conserved(stack.client, done, count)
    assert outcomes_of(done)["cancelled"] > 0
    return EarlyEnd(done, ended_s, max(upstream.starts(name)) - cancelled_s)


def expire(
    stack: Stack, upstream: RecordingUpstream, *, jobs_count: int, count: int, name: str
) -> list[EarlyEnd]:
    """Let jobs of the shortest window expire together, and check what each is worth."""
    names = [f"{name}-{number}" for number in range(jobs_count)]
    # All at once: one that begins seconds before the others may have ended when they expire.
    files = [upload_items(stack, own_name, count) for own_name in names]
    made, deadlines = [], []
    for file_id in files:
        made.append(start(stack, file_id, completion_window=f"{WINDOW_S}s"))
        deadlines.append(time.time() + WINDOW_S)  # as its owner reckons, whatever the row says
    over = [(watch(stack.client, job.id, ended, timeout_s=120), time.time()) for job in made]
    for own_name in names:
        wait_until_idle(stack, upstream, own_name)
    ends = []
    for own_name, (done, seen_s), deadline_s in zip(names, over, deadlines, strict=True):
        ended_s = seen_s - deadline_s
        assert done.status in {"expired", "completed"}, done  # the most urgent may be done
        assert_conserved(stack.client, done, count)
        assert (outcomes_of(done)["expired"] > 0) is (done.status == "expired")
        starts = upstream.starts(own_name)
        ends.append(EarlyEnd(done, ended_s, max(starts, default=deadline_s) - deadline_s))
    return ends


def wait_until_idle(stack: Stack, upstream: RecordingUpstream, name: str) -> int:
    """Return how many items of that name have started, once none has for a while.

    A killed replica restarts first, and runs what it had before the items of another job.
    """
    until_found(lambda: stack.pid("gpu-consumer"))
    assert watch(stack.client, create(stack, "behind", 50).id, ended).status == "completed"
    until(lambda: time.time() - max(upstream.starts(name), default=0.0) > SETTLE_S)
    return len(upstream.starts(name))
