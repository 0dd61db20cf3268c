"""Types of a benchmark: its setup, runs and report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.statistics.intervals import Interval


class VoidRunError(Exception):
    """A run with wrong output or restarted processes; its figures are discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The size of a benchmark and its work folder."""

    work: Path  # an empty folder of this benchmark; removed afterwards
    pairs: int  # one more runs first and is dropped
    items: int | None  # replaces every benchmark's own count
    quick: bool
    note: Callable[[str], None]
    seconds: float | None = None  # replaces the length of a trace
    checkout: Path | None = None  # the root of another checkout, for a comparison with it

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
        """CPU microseconds an item, over all roles."""
        return sum(self.cpu_s.values()) / self.items * 1e6

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s {self.cpu_us:.1f} µs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two consecutive runs, one of each side."""

    ours: Run
    peer: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; the ratio needs a peer."""

    metric: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: Interval | None = None
    spread: Interval | None = None  # of `ours`, where there is no peer
    goal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one benchmark with every sample."""

    name: str
    rows: list[Row]
    pairs: list[Pair] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # of one side alone
    voids: list[str] = field(default_factory=list)


Benchmark = Callable[[Setup], Report]
