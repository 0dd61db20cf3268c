"""Compares recomputed totals and fingerprints and reports every difference. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from results.audit.item_fingerprints import RowFingerprints, differing
from results.audit.log_tally import LogTally
from results.audit.recorded_totals import OUTCOMES, TOKENS, ItemTotals, RecordedTotals

ITEMS_NAMED_MAX: Final = 100
"""Items listed per kind of difference; all of them are counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two sources that should agree, each with its name and value."""

    what: str  # e.g. `items.succeeded`
    left: tuple[str, int]  # source and value
    right: tuple[str, int]


@dataclass(slots=True)
class ItemDifferences:
    """Items on which rows and log disagree."""

    row_missing: list[int] = field(default_factory=list)  # result on the log, no row
    result_missing: list[int] = field(default_factory=list)  # row, no result on the log
    row_differs: list[int] = field(default_factory=list)
    row_missing_count: int = 0
    result_missing_count: int = 0
    row_differs_count: int = 0
    not_written_yet: int = 0  # results that the writer has not reached

    @property
    def is_any(self) -> bool:
        """Whether rows and log disagree."""
        return bool(self.row_missing_count or self.result_missing_count or self.row_differs_count)


def compare_recorded_totals(
    before: RecordedTotals, rows: ItemTotals, after: RecordedTotals
) -> list[Difference]:
    """Return where rows, counters, ledger and order disagree.

    Rows were read between `before` and `after`: those of a running job may lie between the two.
    """
    found = [d for totals in (before, after) for d in _within(totals)]
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


def _within(totals: RecordedTotals) -> Iterator[Difference]:
    """Compare values that change in one transaction, so they agree at every moment."""
    for name in (*TOKENS, "copied"):
        counted, billed = getattr(totals.counters, name), getattr(totals.ledger, name)
        if counted != billed:
            yield Difference(f"usage.{name}", ("counters", counted), ("ledger", billed))
    ended = totals.counters.ended
    if totals.sequenced is not None and totals.sequenced != ended:
        yield Difference("items.ended", ("counters", ended), ("order", totals.sequenced))
    if ended > totals.total_count or (totals.is_settled and ended != totals.total_count):
        yield Difference("items.ended", ("counters", ended), ("input", totals.total_count))


def compare_log(rows: ItemTotals, log: ItemTotals) -> list[Difference]:
    """Return where the sums over a settled job's rows and over its log disagree."""
    return [
        Difference(f"log.{name}", ("rows", left), ("log", right))
        for name, left, right in zip(ItemTotals._fields, rows, log, strict=True)
        if left != right
    ]


def compare_items(rows: RowFingerprints, tally: LogTally) -> ItemDifferences:
    """Return the items on which rows and log disagree."""
    found = ItemDifferences()
    log = tally.fingerprints
    for index, (in_rows, in_log) in enumerate(zip(rows.known, log.known, strict=True)):
        if in_log and not in_rows:
            if index in tally.late:
                found.not_written_yet += 1
            else:
                found.row_missing_count += 1
                _list_item(found.row_missing, index)
        elif in_rows and not in_log:
            found.result_missing_count += 1
            _list_item(found.result_missing, index)
    for index in differing(rows, log):
        found.row_differs_count += 1
        _list_item(found.row_differs, index)
    return found


def _list_item(listed: list[int], index: int) -> None:
    if len(listed) < ITEMS_NAMED_MAX:
        listed.append(index)
