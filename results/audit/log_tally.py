"""Applies the writer's rules to the log of one job without writing: what its rows should contain.

The first result of an item counts, and its copies get it; outcomes after a close do not count, and
items without a result get the outcome of the close. Whether a retryable failure was final depends
on the writer's limit of attempts at the time, a setting, so it is read from the rows.
"""

from dataclasses import dataclass, field

from core.outcomes import Outcome
from core.states import CloseReason
from results.audit.item_fingerprints import (
    ItemFingerprints,
    RowFingerprints,
    close_fields,
    copy_fields,
    outcome_fields,
)
from results.audit.recorded_totals import OUTCOMES, TOKENS, ItemTotals
from results.writer.counters import JobSum, sum_items
from results.writer.job_closer import CLOSE_OUTCOMES
from topics.records.records import CopiesDue, ItemOutcome, JobClose, Outcomes


@dataclass(slots=True)
class LogCounts:
    """Counts of the records read for a job."""

    records: int = 0
    outcomes: int = 0
    repeats: int = 0  # outcomes of items that had one already
    retries: int = 0  # failures that led to another attempt
    copies: int = 0  # items that got the result of another item
    after_close: int = 0
    unknown: int = 0  # outcomes with an index outside the job
    unreadable: int = 0


@dataclass(slots=True)
class LogTally:
    """Tallies the records of one job in partition order."""

    rows: RowFingerprints
    fingerprints: ItemFingerprints
    late: set[int] = field(default_factory=set)
    """Items with an outcome that the writer may not have written yet."""
    counts: LogCounts = field(default_factory=LogCounts)
    totals: ItemTotals = field(default_factory=ItemTotals)
    closed_reason: CloseReason | None = None
    _originals: ItemFingerprints = field(init=False)
    """What copies of each ended original must contain; empty for jobs without copies."""
    _outcomes: bytearray = field(init=False)
    """The outcomes of those originals."""

    def __post_init__(self) -> None:
        """Allocate memory for the copies: `rows` must be read before."""
        count = len(self.rows.originals)
        self._originals, self._outcomes = ItemFingerprints(count), bytearray(count)

    def add_record(self, record: Outcomes | JobClose | CopiesDue, *, is_late: bool) -> None:
        """Apply the next record; call `finish` after the last one."""
        self.counts.records += 1
        if isinstance(record, CopiesDue):
            return  # copies are derived from their originals at the end
        if isinstance(record, JobClose):
            self._close(record, is_late)
            return
        self.counts.outcomes += len(record.items)
        if self.closed_reason is not None:
            self.counts.after_close += len(record.items)
            return
        new = [item for item in record.items if self._counts(item, is_late)]
        self.totals = self.totals.plus(_totals_of(sum_items(record.job.job_id, new)))

    def finish(self) -> None:
        """Give copies the result of their originals, unless a close has done so before."""
        if self.closed_reason is None:
            self._copy()

    def _copy(self) -> None:
        for index, original in enumerate(self.rows.originals):
            if (
                original < 0
                or not self._originals.known[original]
                or self.fingerprints.known[index]
            ):
                continue
            outcome = Outcome(self._outcomes[original])
            fingerprint = self._originals.prints[original]
            if index in self.rows.unstorable:
                fingerprint = self.rows.prints[index]
            self.fingerprints.known[index] = 1
            self.fingerprints.prints[index] = fingerprint
            self.counts.copies += 1
            self.totals = self.totals.plus(_of_outcome(outcome, 1)._replace(copied=1))
            if original in self.late:
                self.late.add(index)

    def _counts(self, item: ItemOutcome, is_late: bool) -> bool:
        """Record an outcome that counts; return whether it is to be added to the totals."""
        index = item.index
        if not 0 <= index < len(self.fingerprints.known):
            self.counts.unknown += 1
            return False
        if self.fingerprints.known[index]:
            self.counts.repeats += 1
            return False
        if item.retryable and not self._was_last(item):
            self.counts.retries += 1
            return False
        if index in self.rows.unstorable:
            # The row contains only that code, whatever the result was.
            self.fingerprints.known[index] = 1
            self.fingerprints.prints[index] = self.rows.prints[index]
            self.totals = self.totals._replace(failed=self.totals.failed + 1)
            self._record_original(index, Outcome.FAILED, ())
            return False
        self.fingerprints.record(index, outcome_fields(item))
        self._record_original(index, item.outcome, copy_fields(item))
        if is_late:
            self.late.add(index)
        return True

    def _was_last(self, failure: ItemOutcome) -> bool:
        """Whether the item's row contains this retryable failure, and no other of its attempt."""
        index = failure.index
        if index in self.rows.unstorable:
            return self.rows.unstorable[index] == failure.attempt
        return bool(self.rows.known[index]) and self.rows.prints[index] == hash(
            outcome_fields(failure)
        )

    def _record_original(self, index: int, outcome: Outcome, fields: tuple[object, ...]) -> None:
        if self.rows.originals:
            self._originals.record(index, fields)
            self._outcomes[index] = outcome.value

    def _close(self, close: JobClose, is_late: bool) -> None:
        """Give open items the outcome of the close; a second close changes nothing."""
        if self.closed_reason is not None:
            self.counts.after_close += 1
            return
        self._copy()
        self.closed_reason = close.close_reason
        outcome, code = CLOSE_OUTCOMES[close.close_reason]
        fields = close_fields(outcome, code)
        open_ = [index for index, known in enumerate(self.fingerprints.known) if not known]
        for index in open_:
            self.fingerprints.record(index, fields)
        if is_late:
            self.late.update(open_)
        self.totals = self.totals.plus(_of_outcome(outcome, len(open_)))


def _totals_of(job_sum: JobSum) -> ItemTotals:
    counted = {name: getattr(job_sum, name) for name in (*OUTCOMES, *TOKENS)}
    return ItemTotals(**counted, billed=job_sum.executed)


def _of_outcome(outcome: Outcome, count: int) -> ItemTotals:
    return ItemTotals()._replace(**{outcome.label: count})
