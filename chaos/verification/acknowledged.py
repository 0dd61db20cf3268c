"""What was acknowledged: jobs complete, files are readable, calls are answered and billed once."""

import json
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from chaos.checkers.acceptance import missing_or_unfinished, probed_ids
from chaos.checkers.results import Usage, is_simulated_answer, tally_from_job
from chaos.clients.client import ENDPOINT, TERMINAL, Client
from chaos.drills.context import MODEL, DrillContext
from chaos.errors import DrillError
from chaos.measures import Measure, violations
from chaos.observations import database
from chaos.observations.database import billed_usage
from chaos.verification.reconciliation import EndedJob, reconcile_jobs

JOBS: Final = "batch_"
FILES: Final = "file-"
CALLS: Final = "job_"
CONCURRENT_READS: Final = 8


def check_jobs(context: DrillContext, promise: str, *, items: int, until_s: float) -> list[Measure]:
    """Return whether every job of the probes, each of `items`, completed with every item.

    Their window is a day and nothing cancels them, so any other end is a loss.
    """
    engine, client = context.engine, context.client("end")
    ids = _created_ids(context, JOBS)
    ended = database.await_jobs(engine, client, ids, until_s, note=context.note)
    states = database.job_states(engine) | {
        job_id: f"completed, {succeeded} of {items} items succeeded"
        for job_id, job in ended.items()
        if job["status"] == "completed" and (succeeded := tally_from_job(job).succeeded) != items
    }
    lost = missing_or_unfinished(ids, states, {"completed"})
    return [
        violations(promise, "acknowledged jobs missing or not completed", lost, size=len(ids)),
        *reconcile_jobs(engine, client, [EndedJob(job, items) for job in ended.values()]),
    ]


def check_files(context: DrillContext, promise: str, content: bytes) -> Measure:
    """Return whether every file of the probes has the uploaded bytes."""
    ids = _created_ids(context, FILES)
    return check_contents(context, promise, dict.fromkeys(ids, content))


def check_accepted_calls(
    context: DrillContext, promise: str, *, body: bytes, until_s: float
) -> list[Measure]:
    """Await the calls of probes that were answered 202; there may be none."""
    found = probed_ids(context.recorder.operations())
    calls = {one: body for one in found if one.startswith(CALLS)}
    count = Measure(
        promise, "calls that were told to ask again later", len(calls), relation="report"
    )
    if not calls:
        return [count]
    client = context.client("follower")
    checked = check_calls(context.engine, client, promise, calls, until_s)
    return [count, *checked]


def check_contents(context: DrillContext, promise: str, sent: Mapping[str, bytes]) -> Measure:
    """Return whether files have the uploaded bytes; `sent` maps each file to them."""
    client = context.client("reader")
    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        found = dict(zip(sent, pool.map(client.read_content, sent), strict=True))
    return compare_contents(promise, found, sent)


def compare_contents(
    promise: str, found: Mapping[str, bytes | None], sent: Mapping[str, bytes]
) -> Measure:
    """Compare the contents of files, None for an unreadable file, with the uploaded bytes."""
    wrong = {
        file_id: "cannot be read" if content is None else f"{len(content)} bytes that differ"
        for file_id, content in found.items()
        if content != sent[file_id]
    }
    what = "acknowledged files missing or of other content"
    return violations(promise, what, wrong, size=len(found))


def _created_ids(context: DrillContext, prefix: str) -> Collection[str]:
    """Return the ids of one kind that probes created. Raises DrillError without any."""
    found = probed_ids(context.recorder.operations())
    if not (known := sorted(one for one in found if one.startswith(prefix))):
        raise DrillError(f"no {prefix} was acknowledged")
    return known


INTERVAL_S: Final = 0.3
ACCEPT_S_MAX: Final = 600.0


def chat_body(text: str, tokens: int) -> bytes:
    """Return the body of a chat completion as the engine receives it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    return json.dumps(body, separators=(",", ":")).encode()


class DurableCalls:
    """Sends background calls, each under an idempotency key."""

    def __init__(self, context: DrillContext) -> None:
        """Prepare; `run` sends the calls."""
        self.bodies: dict[str, bytes] = {}  # job of a call to the body that its engine receives
        self.failures: list[str] = []
        self._context = context

    def run(self, stop: threading.Event) -> None:
        """Send calls until `stop` is set and the last call is accepted or has failed."""
        seed, client, number = self._context.seed, self._context.client("calls"), 0
        while not stop.wait(INTERVAL_S):
            body = chat_body(f"call {seed} {number}", 1 + number % 8)
            try:
                self.bodies[_send_call(client, f"call-{seed}-{number}", body)] = body
            except DrillError as failure:
                self.failures.append(str(failure))
            number += 1


def _send_call(client: Client, key: str, body: bytes) -> str:
    """Send a background call until it is accepted; return the job's id. Raises DrillError."""
    content = body[:-1] + b',"background":true}'
    headers, until_s = {"content-type": "application/json"}, time.monotonic() + ACCEPT_S_MAX
    created = client.post_until_success("call", key, ENDPOINT, until_s, headers, content=content)
    return str(created["id"])


def check_calls(
    engine: sa.Engine, client: Client, promise: str, bodies: Mapping[str, bytes], until_s: float
) -> list[Measure]:
    """Await accepted calls and check their answers and bills.

    `bodies` maps the job of a call to the body that its engine receives.
    """
    ended = client.await_terminal(bodies, until_s, partial(_poll_call, client))
    unanswered = {job: why for job in bodies if (why := _failure_of(ended.get(job)))}
    good = {job: ended[job] for job in bodies if job not in unanswered}
    foreign = [
        job
        for job, found in good.items()
        if not is_simulated_answer(bodies[job], found["response"]["body"])
    ]
    misbilled = [
        job for job, found in good.items() if billed_usage(engine, job) != _shown_usage(found)
    ]
    wrong: list[tuple[str, str, Collection[str] | Mapping[str, str]]] = [
        (promise, "accepted calls that were never answered well", unanswered),
        ("P2", "accepted calls with an answer or tokens that are not their own", foreign),
        ("P4", "accepted calls that are not on the ledger once, to the token", misbilled),
    ]
    return [violations(*one, size=len(bodies)) for one in wrong]


def _poll_call(client: Client, job: str) -> dict[str, Any] | None:
    """Read a call once and record its end; return None without a response."""
    response = client.call("GET", f"/v1/jobs/{job}")
    if response is None or not response.is_success:
        return None
    found: dict[str, Any] = response.json()
    if found["status"] in TERMINAL:
        client.recorder.record(client.name, "follow", job, "ok", status=found["status"])
    return found


def _failure_of(job: Mapping[str, Any] | None) -> str:
    """Return why a call has no successful answer, or an empty string."""
    if job is None:
        return "missing"
    response = job.get("response") or {}
    if job["status"] == "completed" and response.get("status_code") == 200:
        return ""
    return f"{job['status']}, {response.get('status_code')} {job.get('error')}"


def _shown_usage(job: Mapping[str, Any]) -> Usage:
    """Return the usage of a call as its job object shows it."""
    shown = job.get("usage") or {}
    return Usage(
        items=1,
        input_tokens=shown.get("input_tokens", -1),
        output_tokens=shown.get("output_tokens", -1),
    )
