"""P2 and P4: each item is there once, and the bill is the sum of what is there."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

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


class IdMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """How two multisets of custom ids differ."""

    missing: list[str]
    doubled: list[str]
    foreign: list[str]  # of no item of the job

    @property
    def total(self) -> int:
        """0 when both hold the same."""
        return len(self.missing) + len(self.doubled) + len(self.foreign)


def compare_ids(wanted: Iterable[str], found: Iterable[str]) -> IdMismatch:
    """Compare the custom ids of an input with those of its output and error file."""
    want, have = Counter(wanted), Counter(found)
    return IdMismatch(
        missing=sorted((want - have).elements()),
        doubled=sorted(key for key in (have - want).elements() if key in want),
        foreign=sorted(key for key in (have - want).elements() if key not in want),
    )


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Items by how they ended, and the tokens of those that were executed."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        """Items that have ended."""
        return self.succeeded + self.failed + self.cancelled + self.expired


def tally_from_files(lines: Usage, output_count: int, error_codes: Iterable[str]) -> Tally:
    """Return what files say, by the number of lines of one and the codes in the other."""
    codes = Counter(error_codes)
    cancelled, expired = codes.pop("batch_cancelled", 0), codes.pop("batch_expired", 0)
    return Tally(
        succeeded=output_count,
        failed=codes.total(),
        cancelled=cancelled,
        expired=expired,
        input_tokens=lines.input_tokens,
        output_tokens=lines.output_tokens,
    )


def tally_from_job(job: Mapping[str, Any]) -> Tally:
    """Return what a job shows of itself; -1 for what it does not show, or shows in two ways."""
    counts, usage = job.get("request_counts") or {}, job.get("usage") or {}
    outcomes = job.get("millrace") or {}
    numbers = {name: outcomes.get(name, -1) for name in ("cancelled", "expired")}
    for name, other in (("succeeded", "completed"), ("failed", "failed")):
        agree = outcomes.get(name) == counts.get(other)
        numbers[name] = outcomes.get(name, -1) if agree else -1
    for name in ("input_tokens", "output_tokens"):
        numbers[name] = usage.get(name, -1)
    return Tally(**numbers)


def tally_mismatches(items: int, told: Mapping[str, Tally], totals: Mapping[str, int]) -> list[str]:
    """Return how tallies of one job differ from each other, or from the number of its items.

    Both map who says it to what it says; the first tally is what the others are held against.
    """
    wrong = [f"{who}: {total} items of {items}" for who, total in totals.items() if total != items]
    wrong += [f"{who}: {t.total} items of {items}" for who, t in told.items() if t.total != items]
    (first, right), *others = told.items()
    for who, found in others:
        wrong += [
            f"{name}: {first} {getattr(right, name)}, {who} {getattr(found, name)}"
            for name in Tally.__struct_fields__
            if getattr(found, name) != getattr(right, name)
        ]
    return wrong
