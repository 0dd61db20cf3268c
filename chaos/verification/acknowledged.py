"""Objects that probes created: jobs must complete, and files must be readable."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chaos.checkers.acceptance import missing_or_unfinished, probed_ids
from chaos.checkers.results import tally_from_job
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.observations import database
from chaos.reports.measures import Measure, violations
from chaos.verification.durable_calls import check_calls
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
