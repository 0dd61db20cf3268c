"""P2 and P4: each item is there once, and the bill is the sum of what is there."""

from collections import Counter
from collections.abc import Iterable

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Items on a bill and their tokens."""

    items: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def difference(self, other: "Usage") -> int:
        """Return the largest difference of any of the three."""
        return max(
            abs(self.items - other.items),
            abs(self.input_tokens - other.input_tokens),
            abs(self.output_tokens - other.output_tokens),
        )


class Miscount(msgspec.Struct, frozen=True, kw_only=True):
    """How two multisets of custom ids differ."""

    missing: list[str]
    doubled: list[str]
    foreign: list[str]  # of no item of the job

    @property
    def total(self) -> int:
        """0 when both hold the same."""
        return len(self.missing) + len(self.doubled) + len(self.foreign)


def compare_ids(wanted: Iterable[str], found: Iterable[str]) -> Miscount:
    """Compare the custom ids of an input with those of its output and error file."""
    want, have = Counter(wanted), Counter(found)
    return Miscount(
        missing=sorted((want - have).elements()),
        doubled=sorted(key for key in (have - want).elements() if key in want),
        foreign=sorted(key for key in (have - want).elements() if key not in want),
    )


def billing_difference(lines: Usage, counters: Usage, ledger: Usage) -> int:
    """Return the largest disagreement between files, counters and ledger; 0 is exact."""
    return max(lines.difference(ledger), counters.difference(ledger), lines.difference(counters))
