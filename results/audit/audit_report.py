"""The verdict of an audit: what was recomputed, side by side, and every way in which it differs.

Pure: sums and fingerprints in, differences out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from results.audit.item_fingerprints import RowFingerprints, differing
from results.audit.log_tally import LogTally
from results.audit.recorded_totals import OUTCOMES, TOKENS, ItemTotals, RecordedTotals

ITEMS_NAMED_MAX: Final = 100
"""Items that are named of each kind of difference; all of them are counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two places that ought to say the same, and what each says."""

    what: str  # e.g. `items.succeeded`
    left: tuple[str, int]  # where, and what it says there
    right: tuple[str, int]


@dataclass(slots=True)
class ItemDifferences:
    """Items that rows and log tell differently."""

    row_missing: list[int] = field(default_factory=list)  # the log has a result, the rows none
    result_missing: list[int] = field(default_factory=list)  # the rows have one, the log none
    row_differs: list[int] = field(default_factory=list)
    row_missing_count: int = 0
    result_missing_count: int = 0
    row_differs_count: int = 0
    not_written_yet: int = 0  # the writer has not come so far

    @property
    def is_any(self) -> bool:
        """Whether rows and log disagree."""
        return bool(self.row_missing_count or self.result_missing_count or self.row_differs_count)


def compare_recorded_totals(
    before: RecordedTotals, rows: ItemTotals, after: RecordedTotals
) -> list[Difference]:
    """Return where rows, counters, ledger and order disagree.

    Rows were read between `before` and `after`, so of a job that runs they may lie between.
    """
    found = [d for books in (before, after) for d in _within(books)]
    for name in (*OUTCOMES, *TOKENS, "copied"):
        low, high = getattr(before.counters, name), getattr(after.counters, name)
        count = getattr(rows, name)
        if not low <= count <= high:
            kind = "items" if name in OUTCOMES else "usage"
            found.append(Difference(f"{kind}.{name}", ("rows", count), ("counters", high)))
    if not before.ledger.billed <= rows.billed <= after.ledger.billed:
        found.append(
            Difference("usage.items", ("rows", rows.billed), ("ledger", after.ledger.billed))
        )
    return list(dict.fromkeys(found))


def _within(books: RecordedTotals) -> Iterator[Difference]:
    """Compare what one transaction writes, so it agrees at every moment."""
    for name in (*TOKENS, "copied"):
        counted, billed = getattr(books.counters, name), getattr(books.ledger, name)
        if counted != billed:
            yield Difference(f"usage.{name}", ("counters", counted), ("ledger", billed))
    ended = books.counters.ended
    if books.sequenced is not None and books.sequenced != ended:
        yield Difference("items.ended", ("counters", ended), ("order", books.sequenced))
    if ended > books.total_count:
        yield Difference("items.ended", ("counters", ended), ("input", books.total_count))
    if books.is_settled and ended != books.total_count:
        yield Difference("items.ended", ("counters", ended), ("input", books.total_count))


def compare_log(rows: ItemTotals, log: ItemTotals) -> list[Difference]:
    """Return where the sums of a settled job's rows and of its whole log disagree."""
    return [
        Difference(f"log.{name}", ("rows", left), ("log", right))
        for name, left, right in zip(ItemTotals._fields, rows, log, strict=True)
        if left != right
    ]


def compare_items(rows: RowFingerprints, judge: LogTally) -> ItemDifferences:
    """Return which items rows and log tell differently."""
    found = ItemDifferences()
    log = judge.facts
    for index, (in_rows, in_log) in enumerate(zip(rows.known, log.known, strict=True)):
        if in_log and not in_rows:
            if index in judge.late:
                found.not_written_yet += 1
            else:
                found.row_missing_count += 1
                _name(found.row_missing, index)
        elif in_rows and not in_log:
            found.result_missing_count += 1
            _name(found.result_missing, index)
    for index in differing(rows, log):
        found.row_differs_count += 1
        _name(found.row_differs, index)
    return found


def _name(names: list[int], index: int) -> None:
    if len(names) < ITEMS_NAMED_MAX:
        names.append(index)
