"""What probes were told that they had created: jobs must complete, files be there."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chaos.checkers.acceptance import missing_or_unfinished, probed_ids
from chaos.checkers.results import tally_from_job
from chaos.drills.context import DrillContext
from chaos.errors import DrillError
from chaos.observations import database
from chaos.reports.measures import Measure
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from chaos.workloads.durable_calls import check_calls

JOBS: Final = "batch_"
FILES: Final = "file-"
CALLS: Final = "job_"
READ_AT_ONCE: Final = 8


def check_jobs(context: DrillContext, promise: str, *, items: int, until_s: float) -> list[Measure]:
    """Return whether every job of the probes, each of `items`, completed whole.

    They are of a day's window and nobody cancels them, so any other end is a loss.
    """
    engine, client = context.installation.engine, context.client("end")
    ids = _acknowledged(context, JOBS)
    ended = database.await_jobs(engine, client, ids, until_s, note=context.note)
    found = database.job_states(engine) | {
        job_id: f"completed, {succeeded} of {items} items succeeded"
        for job_id, job in ended.items()
        if job["status"] == "completed" and (succeeded := tally_from_job(job).succeeded) != items
    }
    broken = missing_or_unfinished(ids, found, {"completed"})
    return [
        Measure(
            promise=promise,
            what="acknowledged jobs missing or not completed",
            value=len(broken),
            size=len(ids),
            evidence="; ".join(f"{job}: {state}" for job, state in list(broken.items())[:5]),
        ),
        *reconcile_jobs(engine, client, [EndedJob(job, items) for job in ended.values()]),
    ]


def check_files(context: DrillContext, promise: str, content: bytes) -> Measure:
    """Return whether every file of the probes is there, to the byte."""
    ids = _acknowledged(context, FILES)
    return check_contents(context, promise, dict.fromkeys(ids, content))


def check_accepted_calls(
    context: DrillContext, promise: str, *, body: bytes, until_s: float
) -> list[Measure]:
    """Follow the calls of probes that were told 202; nothing has to be told that."""
    found = probed_ids(context.recorder.operations())
    calls = {one: body for one in found if one.startswith(CALLS)}
    count = Measure(
        promise=promise,
        what="calls that were told to ask again later",
        value=len(calls),
        relation="report",
    )
    if not calls:
        return [count]
    client = context.client("follower")
    judged = check_calls(context.installation.engine, client, promise, calls, until_s)
    return [count, *judged]


def check_contents(context: DrillContext, promise: str, sent: Mapping[str, bytes]) -> Measure:
    """Return whether files are there, to the byte; `sent` maps each to what was uploaded."""
    client = context.client("reader")
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        found = dict(zip(sent, pool.map(client.content, sent), strict=True))
    return files_measure(promise, found, sent)


def files_measure(
    promise: str, found: Mapping[str, bytes | None], sent: Mapping[str, bytes]
) -> Measure:
    """Compare files, None where one cannot be read, with what was uploaded."""
    wrong = {
        file_id: "cannot be read" if held is None else f"{len(held)} bytes, others than were sent"
        for file_id, held in found.items()
        if held != sent[file_id]
    }
    return Measure(
        promise=promise,
        what="acknowledged files missing or of other content",
        value=len(wrong),
        size=len(found),
        evidence="; ".join(f"{file_id}: {told}" for file_id, told in list(wrong.items())[:5]),
    )


def _acknowledged(context: DrillContext, prefix: str) -> Collection[str]:
    """Return what probes created of a kind. Raises DrillError when there is nothing to judge."""
    found = probed_ids(context.recorder.operations())
    if not (known := sorted(one for one in found if one.startswith(prefix))):
        raise DrillError(f"no {prefix} was acknowledged")
    return known
