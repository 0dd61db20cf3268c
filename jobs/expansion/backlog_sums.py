"""Sums of the bulk work without a result row, by pool, endpoint and deadline. Pure.

Sums are of integers, so that they equal a new count after any number of changes. A change costs the
same with any number of jobs. They are rows of arrays: to copy them and to fold them by octaves
takes milliseconds with 100,000 of them, and makes no objects for the garbage collector.
"""

import math
from array import array
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from jobs.expansion.load_sums import DUE_SPAN_S, JobLoad
from jobs.input.token_sums import Tokens, default_tokens

OCTAVES_MAX: Final = 32
"""Octaves of the time to a deadline: 2³² s are more than any completion window."""

JOB_TOKENS_MAX: Final = 10**12
"""Tokens of one job at most, of each kind: the sum of nine million such jobs fits into 64 bits."""

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class BacklogPlace(NamedTuple):
    """What is summed up in one row: deadlines lie in the same span of `DUE_SPAN_S`."""

    pool: str
    endpoint: str
    is_blocked: bool  # it may not run now
    is_stopped: bool  # and no time before its deadline lets it run
    span: int


class BacklogWork(NamedTuple):
    """Items without a row and without the copies that are known, and their estimated tokens."""

    items: int
    prompt_tokens: int
    output_tokens: int
    deadline_s: float
    """The earliest since the place has work. Once its job has ended, and others of the same
    span have not, it is up to `DUE_SPAN_S` too early."""


class OctaveWork(NamedTuple):
    """The work of a pool that is due in one octave, for one endpoint."""

    octave: int
    endpoint: str
    is_blocked: bool
    work: BacklogWork
    is_stopped: bool = False


_Group: TypeAlias = tuple[str, str, bool, bool]
"""Pool, endpoint, and whether the work is blocked and stopped."""


@dataclass(frozen=True, slots=True)
class BacklogCopy:
    """The sums of one moment, row by row."""

    groups: list[_Group]
    group_of: _Array
    counts: tuple[_Array, _Array, _Array]  # items, prompt tokens, output tokens
    deadlines: _Array  # the earliest

    def by_octave(self, now_s: float) -> dict[str, list[OctaveWork]]:
        """Return the work of each pool by octave of the time to its deadlines, and by endpoint."""
        used = np.flatnonzero(self.counts[0])
        deadlines = self.deadlines[used]
        left = np.maximum(deadlines - now_s, 0.0)
        octaves = np.where(left < 2, 0, np.minimum(np.frexp(left)[1] - 1, OCTAVES_MAX))
        keys = self.group_of[used] * (OCTAVES_MAX + 1) + octaves
        size = len(self.groups) * (OCTAVES_MAX + 1)
        sums = [np.bincount(keys, column[used], size) for column in self.counts]
        earliest = np.full(size, np.inf)
        np.minimum.at(earliest, keys, deadlines)
        found: dict[str, list[OctaveWork]] = {}
        for key in np.flatnonzero(sums[0]).tolist():
            group, octave = divmod(key, OCTAVES_MAX + 1)
            pool, endpoint, is_blocked, is_stopped = self.groups[group]
            items, prompt, output = (int(column[key]) for column in sums)
            work = BacklogWork(items, prompt, output, float(earliest[key]))
            one = OctaveWork(octave, endpoint, is_blocked, work, is_stopped)
            found.setdefault(pool, []).append(one)
        return found


@dataclass(slots=True)
class BacklogSums:
    """The work of the open batches, those that are blocked included."""

    _rows: dict[BacklogPlace, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _groups: dict[_Group, int] = field(default_factory=dict)
    _group_of: "array[int]" = field(default_factory=lambda: array("q"))
    _items: "array[int]" = field(default_factory=lambda: array("q"))
    _prompt: "array[int]" = field(default_factory=lambda: array("q"))
    _output: "array[int]" = field(default_factory=lambda: array("q"))
    _deadlines: "array[float]" = field(default_factory=lambda: array("d"))

    def replace(
        self, before: JobLoad | None, after: JobLoad | None, *, is_blocked: bool = False
    ) -> None:
        """Replace the load of a job. `is_blocked`: it is paused, or its tenant in quarantine.

        None: it was not open before, or is not open any more, or not blocked like this.
        """
        removed = () if before is None else _works(before, is_blocked)
        added = () if after is None else _works(after, is_blocked)
        if removed != added:
            # What is added comes first, so that a place that stays keeps its row.
            for place, work in added:
                self._add(place, work)
            for place, work in removed:
                self._remove(place, work)

    def copy(self) -> BacklogCopy:
        """Return the sums of now, which later changes do not touch."""
        counts = np.array(self._items), np.array(self._prompt), np.array(self._output)
        deadlines = np.array(self._deadlines)
        return BacklogCopy(list(self._groups), np.array(self._group_of), counts, deadlines)

    def places(self) -> dict[BacklogPlace, BacklogWork]:
        """Return all sums by place."""
        return {
            place: BacklogWork(
                self._items[row], self._prompt[row], self._output[row], self._deadlines[row]
            )
            for place, row in self._rows.items()
        }

    def differs_from(self, other: "BacklogSums") -> bool:
        """Whether items or tokens differ. Deadlines depend on which jobs have ended meanwhile."""
        theirs = other._rows  # noqa: SLF001  of the same class
        if self._rows.keys() != theirs.keys():
            return True
        rows, of_other = [*self._rows.values()], [theirs[place] for place in self._rows]
        return any(
            not np.array_equal(column[rows], counted[of_other])
            for column, counted in zip(self.copy().counts, other.copy().counts, strict=True)
        )

    def _add(self, place: BacklogPlace, work: BacklogWork) -> None:
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = self._new_row(place)
        self._items[row] += work.items
        self._prompt[row] += work.prompt_tokens
        self._output[row] += work.output_tokens
        if work.deadline_s < self._deadlines[row]:
            self._deadlines[row] = work.deadline_s

    def _remove(self, place: BacklogPlace, work: BacklogWork) -> None:
        row = self._rows[place]
        self._items[row] -= work.items
        self._prompt[row] -= work.prompt_tokens
        self._output[row] -= work.output_tokens
        if not self._items[row]:
            del self._rows[place]
            self._free.append(row)
            self._deadlines[row] = math.inf

    def _new_row(self, place: BacklogPlace) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._items)
            for column in (self._group_of, self._items, self._prompt, self._output):
                column.append(0)
            self._deadlines.append(math.inf)
        self._group_of[row] = self._groups.setdefault(place[:4], len(self._groups))
        return row


def _works(load: JobLoad, is_blocked: bool) -> tuple[tuple[BacklogPlace, BacklogWork], ...]:
    """Return the work of a job: none, or that which may run, or is blocked, or both.

    Outside of its hours, and before the time from which it may run, its items that are not emitted
    are blocked; those that are emitted run. What is paused or in quarantine, or opens after its
    deadline, is stopped.
    """
    left = load.total - load.terminal
    if left <= 0:
        return ()
    if not load.opens_s or is_blocked:
        return (_work(load, left, is_blocked, is_blocked),)
    blocked = min(left, max(0, load.total - load.emitted))
    is_stopped = load.opens_s >= load.deadline_s
    parts = (left - blocked, False, False), (blocked, True, is_stopped)
    return tuple(_work(load, *part) for part in parts if part[0])


def _work(
    load: JobLoad, items: int, is_blocked: bool, is_stopped: bool
) -> tuple[BacklogPlace, BacklogWork]:
    prompt, output = job_tokens(load, items)
    span = int(load.deadline_s // DUE_SPAN_S)
    place = BacklogPlace(load.pool, load.endpoint, is_blocked, is_stopped, span)
    return place, BacklogWork(items, prompt, output, load.deadline_s)


def job_tokens(load: JobLoad, items: int) -> Tokens:
    """Return the estimated tokens of `items` of a job: its mean, or the default if it has none."""
    if load.prompt_tokens is None or load.output_tokens is None or load.total <= 0:
        prompt, output = default_tokens(load.endpoint, items, load.item_bytes)
    else:
        prompt = max(0, load.prompt_tokens) * items // load.total
        output = max(0, load.output_tokens) * items // load.total
    return Tokens(min(prompt, JOB_TOKENS_MAX), min(output, JOB_TOKENS_MAX))
