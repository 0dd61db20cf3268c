"""Puts the longest of the last items of an ordered job first. Pure."""

from collections.abc import Sequence
from typing import Final

from topics.records.records import Item

LAST_SHARE: Final = 0.02
"""Share of a job's items that counts as its end: they are in its last few prefix groups."""


def longest_last_items_first(items: Sequence[Item], position: int, total: int) -> list[Item]:
    """Return items of one round; those at the end of the job by expected output, longest first.

    A job ends with its last item, so a long one should not begin last (the LPT rule, Graham 1969).
    The expected output is what the results so far let expect, at most the item's limit; equal items
    keep their order, and so their prefix groups. `position` is that of the first of `items`. The
    cursor passes them together, so it stays a position in the order of the file.
    """
    first_last = total - int(total * LAST_SHARE)
    count = max(0, min(len(items), first_last - position))
    last = sorted(items[count:], key=lambda item: -item.output_token_count)
    return [*items[:count], *last]
