"""Goal: executions above the attempt limit are told apart from charged crashes."""

from uuid import UUID

from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import CloseReason
from results.rebuilding.log_replay import jobs_above_limit
from results.writer.record_groups import Entry
from tests.unit.batcher.builders import job_ref
from topics.records.records import ItemOutcome, JobClose, Outcomes

PLACE = ("results", 0)


def entry(record: Outcomes | JobClose) -> Entry:
    return Entry(PLACE, 1, 1, record)


def ended(attempt: int, *, outcome: Outcome = Outcome.SUCCEEDED, body: bytes = b"") -> ItemOutcome:
    return ItemOutcome(0, "a", outcome, 200, body, attempt=attempt)


def of_job(job_id: UUID, *items: ItemOutcome) -> Entry:
    return entry(Outcomes(job_ref(job_id=job_id), list(items)))


def test_executions_above_the_limit_are_counted_by_job() -> None:
    one, other = new_uuid(), new_uuid()
    entries = [
        of_job(one, ended(1), ended(2)),
        of_job(other, ended(2)),
        entry(JobClose(one, 0, CloseReason.CANCELLED)),
        of_job(one, ended(3, outcome=Outcome.FAILED)),
    ]
    of_limits = [list(jobs_above_limit(entries, limit)) for limit in (1, 2, 3)]
    assert of_limits == [[one, other, one], [one], []]


def test_crashes_charged_to_an_item_are_no_attempts() -> None:
    charged = ended(4, outcome=Outcome.FAILED, body=b'{"error":{"code":"item_crashes_engine"}}')

    assert list(jobs_above_limit([of_job(new_uuid(), charged)], 3)) == []
