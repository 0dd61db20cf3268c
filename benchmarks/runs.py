"""What a benchmark is given, what it measures, and what it reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.statistics.intervals import Interval


class VoidRunError(Exception):
    """A run whose output or processes were not what they had to be: its figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How much to measure, and where."""

    work: Path  # an empty folder of this benchmark; removed afterwards
    pairs: int  # that count; one more runs first and is dropped
    items: int | None  # in place of every benchmark's own count
    quick: bool
    note: Callable[[str], None]

    def count(self, full: int, quick: int) -> int:
        """Return how many items a run has."""
        return self.items or (quick if self.quick else full)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One verified run of one side."""

    items: int
    seconds: float
    cpu_s: Mapping[str, float]  # user + system by role, reaped children included
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU an item, over all roles."""
        return sum(self.cpu_s.values()) / self.items * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs next to each other in time."""

    ours: Run
    peer: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Without a peer there is no ratio."""

    metric: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: Interval | None = None
    spread: Interval | None = None  # of `ours`, where there is no peer
    goal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one benchmark found; every sample is kept."""

    name: str
    rows: list[Row]
    pairs: list[Pair] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # of one side alone
    voids: list[str] = field(default_factory=list)


Benchmark = Callable[[Setup], Report]
