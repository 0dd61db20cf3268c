"""How much each batcher may send to this replica: cumulative grants, like windows of HTTP/2.

A grant limits all items ever sent under one epoch (RFC 9113, 5.2), so a lost or repeated record
changes nothing. Pure: time and demand are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.fair_shares import fair_shares

DEMAND_VOID_S = 3.0
"""A batcher without demand records for so long gets no grant; the others share it."""

WAITING_VOID_S = 1.0
"""The same for a batcher whose last demand had waiting items: it repeats that every 0.2 s."""

FORGET_S = 300.0
"""A batcher silent for so long, while others were not, is taken for an ended process."""

NEW_SHARE = 4
"""At least this fraction (1/4) of the limit is granted for new items. Items from before the epoch
may have crashed a process, so they run alone and may stay in flight across several crashes."""

_SHARE_UNIT: Final = 1000
"""Shares are rounded to thousandths of a tenant of weight 1."""

RATE_WEIGHT = 0.3
"""Weight of the newest window in the measured rate."""


@dataclass(slots=True)
class _Account:
    """The items of one batcher under this epoch."""

    arrived: int = 0
    finished: int = 0
    waiting: int = 0
    share: float | None = None  # of the pool; None: it follows the waiting items
    received_s: float = 0.0  # the time of its last demand record

    @property
    def in_flight(self) -> int:
        """Its items here."""
        return max(0, self.arrived - self.finished)


@dataclass(slots=True)
class Grants:
    """The grants of one replica and epoch."""

    accounts: dict[str, _Account] = field(default_factory=dict)
    foreign_in_flight: int = 0  # items here that were sent under another epoch

    def set_demand(
        self, batcher_id: str, waiting: int, share: float | None = None, *, now_s: float
    ) -> None:
        """Set how many items wait at a batcher for this pool, and its share of the pool."""
        account = self._account(batcher_id)
        account.waiting, account.share, account.received_s = waiting, share, now_s

    def add_arrived(self, batcher_id: str, count: int) -> None:
        """Count items of this epoch that have arrived."""
        self._account(batcher_id).arrived += count

    def add_finished(self, batcher_id: str, count: int) -> None:
        """Count items of this epoch that have ended."""
        self._account(batcher_id).finished += count

    def compute_grants(self, limit: int, *, now_s: float) -> dict[str, int]:
        """Return the cumulative grant of each live batcher; together they have `limit` open.

        Items of other epochs count against the limit, except for `NEW_SHARE` of it. Each batcher
        gets what it has waiting and in flight here, within its share of the pool: the one that it
        published, or else, if one of them published none, the part of the waiting items that it
        has. The other places go to the same batchers, for items in transit; if no batcher has
        items, all places are shared equally. Each has one place at least, so that its first item
        finds credit.
        """
        live = {
            name: account
            for name, account in self.accounts.items()
            if now_s - account.received_s <= (WAITING_VOID_S if account.waiting else DEMAND_VOID_S)
        }
        open_items = max(limit // NEW_SHARE, limit - self.foreign_in_flight)
        needs = {name: account.waiting + account.in_flight for name, account in live.items()}
        weights = _weights(live)
        open_shares = fair_shares(needs, open_items, weights)
        with_needs = [name for name, need in needs.items() if need] or [*live]
        left = open_items - sum(open_shares.values())
        unused = fair_shares(dict.fromkeys(with_needs, limit), left, weights)
        return {
            name: account.finished
            + max(min(1, open_items), open_shares[name] + unused.get(name, 0))
            for name, account in live.items()
        }

    def _account(self, batcher_id: str) -> _Account:
        account = self.accounts.get(batcher_id)
        if account is None:  # `setdefault` would create an account for each item
            account = self.accounts[batcher_id] = _Account()
        return account

    def start_epoch(self, in_flight: int) -> None:
        """Void every grant: partitions have moved, so sent items may run elsewhere.

        Only here are silent batchers forgotten: within an epoch a grant must not fall.
        """
        newest_s = max((account.received_s for account in self.accounts.values()), default=0.0)
        self.accounts = {
            name: account
            for name, account in self.accounts.items()
            if newest_s - account.received_s <= FORGET_S
        }
        for account in self.accounts.values():
            account.arrived = account.finished = 0
        self.foreign_in_flight = in_flight


def _weights(accounts: Mapping[str, _Account]) -> dict[str, int]:
    """Return the weight of each batcher, at least 1."""
    if any(account.waiting and account.share is None for account in accounts.values()):
        return {name: max(1, account.waiting) for name, account in accounts.items()}
    return {
        name: max(1, round(_SHARE_UNIT * (account.share or 0.0)))
        for name, account in accounts.items()
    }


def bulk_limit(concurrency: int, items_per_s: float, batch_items: int) -> int:
    """Return the items to keep here: max(two batches, concurrency plus 100 ms of throughput).

    A batch counts as 2.5 s of throughput at most, so that few items wait at a slow engine.
    """
    batch = batch_items if items_per_s <= 0 else min(batch_items, int(2.5 * items_per_s) + 1)
    return max(2 * min(batch, concurrency), concurrency + int(0.1 * items_per_s), 2)


def online_limit(concurrency: int, items_per_s: float) -> int:
    """Return the online calls to keep here: the concurrency plus 100 ms of throughput.

    No more, because fair scheduling between tenants ends where the engine's queue begins.
    """
    return max(1, concurrency + int(0.1 * items_per_s))


def publish_threshold(limit: int, job_class: str) -> int:
    """Return how many ended items are published at once, before the next periodic record.

    An online call waits for the credit of each of them; a batch of bulk items does not.
    """
    return max(1, limit // (16 if job_class == "interactive" else 3))


WINDOW_S_MIN: Final = 0.2
"""A shorter window counts as one of this length: little work says little about the rate."""

WINDOW_S_MAX: Final = 30.0
"""A window of this length ends with the next answer."""

_LONG_WINDOW_S: Final = 1.0  # from this length on, an open window limits the rate


class ClosedWindow(NamedTuple):
    """A window that has ended."""

    busy_s: float
    was_full: bool  # as many items as run at once were here


class MeasuredRate:
    """The smoothed rate and the open window."""

    def __init__(self) -> None:
        self.items_per_s = 0.0
        """0 while unknown."""
        self._answered = 0
        self._in_flight_max = 0  # in the window
        self._busy_s = 0.0  # of the window, until `_busy_since_s`
        self._busy_since_s: float | None = None

    def mark_busy(self, in_flight: int, *, now_s: float) -> None:
        """Items have arrived; `in_flight` are here now."""
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        self._in_flight_max = max(self._in_flight_max, in_flight)

    def mark_idle(self, *, now_s: float) -> None:
        """The last item has ended."""
        self._busy_s, self._busy_since_s = self._window_s(now_s), None

    def add_answered(self, count: int) -> None:
        """Count items that the engine has answered."""
        self._answered += count

    def update(self, in_flight: int, *, concurrency: int, now_s: float) -> ClosedWindow | None:
        """Close the window and return it if it holds enough answers.

        `concurrency` items run at once.
        """
        busy_s = self._window_s(now_s)
        together = max(1, min(concurrency, self._in_flight_max))
        if self._answered >= together or (self._answered and busy_s >= WINDOW_S_MAX):
            newest = self._answered / max(WINDOW_S_MIN, busy_s)
            weight = RATE_WEIGHT if self.items_per_s > 0 else 1.0
            self.items_per_s += weight * (newest - self.items_per_s)
            closed = ClosedWindow(busy_s, self._in_flight_max >= concurrency)
            self._answered, self._in_flight_max, self._busy_s = 0, in_flight, 0.0
            self._busy_since_s = now_s if in_flight else None
            return closed
        if busy_s >= _LONG_WINDOW_S:
            self.items_per_s = min(self.items_per_s, (self._answered + together) / busy_s)
        return None

    def _window_s(self, now_s: float) -> float:
        return self._busy_s + (0.0 if self._busy_since_s is None else now_s - self._busy_since_s)
