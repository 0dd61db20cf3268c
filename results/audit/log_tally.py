"""The writer's rules on the log of one job, without writing: what its rows ought to say.

The first result of an item wins, and its copies take it over; behind a close nothing counts, and
items without a result get the outcome of the close. A failure that may pass is final only where the
writer's own limit made it so, which the rows tell: that limit is a setting and may have changed.
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
from results.audit.recorded_totals import ItemTotals
from results.writer.counters import JobSum, sum_items
from results.writer.job_closer import CLOSE_OUTCOMES
from topics.records.records import Close, CopiesDue, ItemOutcome, Outcomes


@dataclass(slots=True)
class LogCounts:
    """What was read of a job."""

    records: int = 0
    outcomes: int = 0
    repeats: int = 0  # outcomes of items that had theirs already
    retries: int = 0  # failures that led to another attempt
    copies: int = 0  # items that took over the result of another
    after_close: int = 0
    unknown: int = 0  # of no item of the job
    unreadable: int = 0


@dataclass(slots=True)
class LogTally:
    """Judges the records of one job in the order of its partition."""

    rows: RowFingerprints
    facts: ItemFingerprints
    late: set[int] = field(default_factory=set)
    """Items decided by records that the writer may not have written yet."""
    counts: LogCounts = field(default_factory=LogCounts)
    totals: ItemTotals = field(default_factory=ItemTotals)
    closed_reason: CloseReason | None = None
    _given: ItemFingerprints = field(init=False)
    """What the rows of copies say of each original that has a result; without copies, nothing."""
    _ends: bytearray = field(init=False)
    """How those originals ended."""

    def __post_init__(self) -> None:
        """Take as much room as the copies need: `rows` were read before."""
        count = len(self.rows.originals)
        self._given, self._ends = ItemFingerprints(count), bytearray(count)

    def add_record(self, record: Outcomes | Close | CopiesDue, *, is_late: bool) -> None:
        """Judge the next record; call `finish` behind the last one."""
        self.counts.records += 1
        if isinstance(record, CopiesDue):
            return  # in the end copies have what their originals have
        if isinstance(record, Close):
            self._close(record, is_late)
            return
        self.counts.outcomes += len(record.items)
        if self.closed_reason is not None:
            self.counts.after_close += len(record.items)
            return
        new = [item for item in record.items if self._decides(item, is_late)]
        self.totals = self.totals.plus(_tally(sum_items(record.job.job_id, new)))

    def finish(self) -> None:
        """Give copies what their originals have; a close does so, too, before it fills the rest."""
        if self.closed_reason is None:
            self._copy()

    def _copy(self) -> None:
        for index, original in enumerate(self.rows.originals):
            if original < 0 or not self._given.known[original] or self.facts.known[index]:
                continue
            outcome, fingerprint = Outcome(self._ends[original]), self._given.prints[original]
            if index in self.rows.unstorable:
                fingerprint = self.rows.prints[index]
            self.facts.known[index] = 1
            self.facts.prints[index] = fingerprint
            self.counts.copies += 1
            self.totals = self.totals.plus(_of_outcome(outcome, 1)._replace(copied=1))
            if original in self.late:
                self.late.add(index)

    def _decides(self, item: ItemOutcome, is_late: bool) -> bool:
        index = item.index
        if not 0 <= index < len(self.facts.known):
            self.counts.unknown += 1
            return False
        if self.facts.known[index]:
            self.counts.repeats += 1
            return False
        if item.retryable and not self._was_last(item):
            self.counts.retries += 1
            return False
        if index in self.rows.unstorable:
            # The row says that, and nothing else, of whatever the result was.
            self.facts.known[index] = 1
            self.facts.prints[index] = self.rows.prints[index]
            self.totals = self.totals._replace(failed=self.totals.failed + 1)
            self._give(index, Outcome.FAILED, ())
            return False
        self.facts.record(index, outcome_fields(item))
        self._give(index, item.outcome, copy_fields(item))
        if is_late:
            self.late.add(index)
        return True

    def _was_last(self, failure: ItemOutcome) -> bool:
        """Whether the row is of this failure, though it may pass: not of another of its attempt."""
        index = failure.index
        if index in self.rows.unstorable:
            return self.rows.unstorable[index] == failure.attempt
        return bool(self.rows.known[index]) and self.rows.prints[index] == hash(
            outcome_fields(failure)
        )

    def _give(self, index: int, outcome: Outcome, said: tuple[object, ...]) -> None:
        if self.rows.originals:
            self._given.record(index, said)
            self._ends[index] = outcome.value

    def _close(self, close: Close, is_late: bool) -> None:
        """End what is open; a second close changes nothing."""
        if self.closed_reason is not None:
            self.counts.after_close += 1
            return
        self._copy()
        self.closed_reason = close.reason
        outcome, code = CLOSE_OUTCOMES[close.reason]
        said = close_fields(outcome, code)
        open_ = [index for index, known in enumerate(self.facts.known) if not known]
        for index in open_:
            self.facts.record(index, said)
        if is_late:
            self.late.update(open_)
        self.totals = self.totals.plus(_of_outcome(outcome, len(open_)))


def _tally(total: JobSum) -> ItemTotals:
    return ItemTotals(
        total.succeeded,
        total.failed,
        total.cancelled,
        total.expired,
        total.input_tokens,
        total.output_tokens,
        total.cached_tokens,
        total.reasoning_tokens,
        total.executed,
    )


def _of_outcome(outcome: Outcome, count: int) -> ItemTotals:
    return ItemTotals()._replace(**{outcome.label: count})
