"""`millrace rebuild`: rebuild the projections of ended jobs from the log."""

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Annotated
from uuid import UUID

import typer

from cli.admin.operator_connections import DataOption, database_settings, kafka_settings
from cli.exits import ExitCode, NotFoundError
from cli.output import FormatOption, OutputFormat, write_json, write_rows
from core.ids import JOB, SINGLE, parse_public_id, public_id
from core.states import JobKind
from results.rebuilding.log_replay import LogReplay
from results.rebuilding.rebuild import RebuildOutcome, RebuiltJob, rebuild
from results.rebuilding.shadow_tables import shadow_engine
from results.settings import WriterSettings
from storage.postgres.engines import create_engine

_HEADERS = (
    "job",
    "verdict",
    "missing",
    "extra",
    "different",
    "counters",
    "usage",
    "order",
    "letters",
    "attempts",
    "provenance",
)
_WIDTHS = (38, 16, 7, 7, 9, 8, 7, 7, 7, 8, 10)
_CONSISTENT = frozenset({RebuildOutcome.SAME, RebuildOutcome.SWAPPED, RebuildOutcome.GONE})
_CONSISTENT_WITH_ALL = _CONSISTENT | {RebuildOutcome.NOT_ENDED}  # running jobs do not count


def rebuild_jobs(
    job: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The job, `batch_…` or `job_…`.")
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all", help="Every job that has ended.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Replace what differs; by default, only compare.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Longest time in seconds for each partition of the log.")
    ] = 600,
    data: DataOption = None,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Rebuild rows, counters, usage, order and dead letters of ended jobs from the log.

    For operators: connects to Postgres and Kafka. Refuses a job whose first record the log no
    longer holds, and one that ran under another MILLRACE_WRITER_ATTEMPTS_MAX. --apply replaces what
    differs, one transaction for each job, provided that the log has the outcome of every item. Exit
    code 1: a job still differs or was refused; with --all, jobs that have not ended do not count.
    """
    if (job is None) == (not all_jobs):
        raise typer.BadParameter("give either an ID or --all")
    verdicts: list[RebuildOutcome] = []
    found = _rebuild(_ids(job), apply, timeout, data)
    first = list(islice(found, 1))  # before the table header: it may fail at once
    if job is not None and not first:
        raise NotFoundError("There is no such job, or it has no items.")
    write_jobs(chain(first, found), output_format, verdicts)
    if not is_consistent(verdicts, all_jobs=all_jobs):
        raise typer.Exit(ExitCode.FAILED)


def is_consistent(verdicts: Iterable[RebuildOutcome], *, all_jobs: bool) -> bool:
    """Whether every verdict means that the projections agree with the log."""
    return (_CONSISTENT_WITH_ALL if all_jobs else _CONSISTENT).issuperset(verdicts)


def write_jobs(
    found: Iterable[RebuiltJob], output_format: OutputFormat, verdicts: list[RebuildOutcome]
) -> None:
    """Write the jobs and collect their verdicts; after a failure, write those before it."""
    shown: list[dict[str, object]] = []

    def rows() -> Iterator[tuple[str, ...]]:
        for one in found:
            verdicts.append(one.outcome)
            shown.append(as_json(one))
            yield job_row(one)

    if output_format is OutputFormat.TABLE:
        write_rows(_HEADERS, rows(), _WIDTHS)
        return
    try:
        for _ in rows():
            pass
    except BaseException:  # also an interrupt: the jobs recovered so far are shown
        if shown:
            write_json(shown)
        raise
    write_json(shown)


def _ids(job: str | None) -> list[UUID] | None:
    if job is None:
        return None
    job_id = parse_public_id(JOB, job) or parse_public_id(SINGLE, job)
    if job_id is None:
        raise NotFoundError("This is not a job id.")
    return [job_id]


def _rebuild(
    job_ids: list[UUID] | None, apply: bool, timeout_s: float, data: DataOption
) -> Iterator[RebuiltJob]:
    database = database_settings(data)
    writer = WriterSettings.from_env(os.environ)
    live = create_engine(database, application_name="millrace-rebuild")
    try:
        replay = LogReplay(kafka_settings(data), writer, timeout_s=timeout_s)
        with shadow_engine(database, live) as shadow:
            for one in rebuild(live, shadow, replay, job_ids, apply=apply):
                if one.outcome is RebuildOutcome.OTHER_LIMIT:
                    typer.echo(attempt_limit_message(one, writer.attempts_max), err=True)
                yield one
    finally:
        live.dispose()


def attempt_limit_message(one: RebuiltJob, attempts_max: int) -> str:
    """Explain the refusal of a job that ran under another limit of attempts."""
    found = one.found
    assert found is not None  # set for this verdict
    signs = []
    if found.above_limit:
        signs.append(f"the log holds {found.above_limit} executions above it")
    if found.below_limit:
        signs.append(f"{found.below_limit} failures below it were final")
    return (
        f"{public_job_id(one)}: MILLRACE_WRITER_ATTEMPTS_MAX is {attempts_max}, but "
        f"{' and '.join(signs)}: set it to its value when the job ran"
    )


def job_row(one: RebuiltJob) -> tuple[str, ...]:
    """Return the cells of a job under `_HEADERS`."""
    found = one.found
    if found is None:
        return (public_job_id(one), one.outcome, *[""] * (len(_HEADERS) - 2))
    agree = (found.counters_agree, found.usage_agrees, found.is_order_complete)
    return (
        public_job_id(one),
        one.outcome,
        str(found.missing),
        str(found.extra),
        str(found.different),
        *("same" if same else "differs" for same in agree),
        str(found.letters_missing),
        str(found.attempts_missing),
        "same" if found.provenance_agrees else "differs",
    )


def as_json(one: RebuiltJob) -> dict[str, object]:
    """Return a job as JSON, with its digests."""
    found = one.found
    shown: dict[str, object] = {"job": public_job_id(one), "verdict": one.outcome.value}
    if found is not None:
        shown |= {
            "digest": found.live_digest,
            "digest_of_log": found.shadow_digest,
            "rows_missing": found.missing,
            "rows_extra": found.extra,
            "rows_different": found.different,
            "counters_agree": found.counters_agree,
            "usage_agrees": found.usage_agrees,
            "order_is_whole": found.is_order_complete,
            "provenance_agrees": found.provenance_agrees,
            "dead_letters_missing": found.letters_missing,
            "attempts_missing": found.attempts_missing,
            "executions_above_limit": found.above_limit,
            "failures_below_limit": found.below_limit,
        }
    return shown


def public_job_id(one: RebuiltJob) -> str:
    """Return the id that clients use."""
    return public_id(JOB if one.kind == JobKind.BATCH else SINGLE, one.job_id)
