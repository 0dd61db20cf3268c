"""How much each batcher may send to this replica: cumulative grants, as HTTP/2 windows.

A grant is a limit on all items ever sent under this epoch (RFC 9113, 5.2), so a lost or repeated
message changes nothing. Pure: time and demand are arguments.
"""

from dataclasses import dataclass, field

DEMAND_VOID_S = 3.0
"""A batcher that was silent for so long gets nothing; its share goes to the others."""

WAITING_VOID_S = 1.0
"""The same for one that said last that items wait: it would say so again every 0.2 s."""

FORGET_S = 300.0
"""A batcher that was silent for so long, while others were heard, is another process by now."""

NEW_SHARE = 4
"""One in so many of the open items is always for what is new: what came from elsewhere may have
ended its process, runs alone and may take several lives of one to end."""

RATE_WEIGHT = 0.3
"""Weight of the newest window in the measured rate."""


@dataclass(slots=True)
class _Account:
    """What one batcher sent here under this epoch, and what it holds."""

    finished: int = 0
    waiting: int = 0
    heard_s: float = 0.0


@dataclass(slots=True)
class Grants:
    """The grants of one replica epoch."""

    accounts: dict[str, _Account] = field(default_factory=dict)
    foreign_in_flight: int = 0  # items here that spend no credit of this epoch

    def demand(self, batcher_id: str, waiting: int, *, now_s: float) -> None:
        """A batcher says how many items it holds for this pool."""
        account = self.accounts.setdefault(batcher_id, _Account())
        account.waiting, account.heard_s = waiting, now_s

    def finished(self, batcher_id: str, count: int) -> None:
        """Items that spent credit of this epoch have ended."""
        account = self.accounts.get(batcher_id)
        if account is None:  # `setdefault` would build one for each item
            account = self.accounts[batcher_id] = _Account()
        account.finished += count

    def granted(self, limit: int, *, now_s: float) -> dict[str, int]:
        """Return the cumulative grant of each live batcher; together they have `limit` open.

        Items that spent no credit of this epoch count against it, but for a share of it.
        Shares follow what batchers hold; with nothing held they are equal, so that the first item
        finds credit waiting.
        """
        live = {
            name: account
            for name, account in self.accounts.items()
            if now_s - account.heard_s <= (WAITING_VOID_S if account.waiting else DEMAND_VOID_S)
        }
        open_items = max(limit // NEW_SHARE, limit - self.foreign_in_flight)
        held = sum(account.waiting for account in live.values())
        grants = {}
        for name, account in live.items():
            share = account.waiting / held if held else 1 / len(live)
            grants[name] = account.finished + max(min(1, open_items), int(open_items * share))
        return grants

    def next_epoch(self, in_flight: int) -> None:
        """Void every grant: partitions moved, so what was sent may run elsewhere.

        Only now may an account go: within an epoch its sum must not fall.
        """
        newest_s = max((account.heard_s for account in self.accounts.values()), default=0.0)
        self.accounts = {
            name: account
            for name, account in self.accounts.items()
            if newest_s - account.heard_s <= FORGET_S
        }
        for account in self.accounts.values():
            account.finished = 0
        self.foreign_in_flight = in_flight


def open_limit(concurrency: int, items_per_s: float, batch_items: int) -> int:
    """Return the items to hold here: max(two batches, concurrency plus 100 ms of throughput).

    A batch is at most 2.5 s of throughput, so a slow engine holds few items it cannot start.
    """
    batch = batch_items if items_per_s <= 0 else min(batch_items, int(2.5 * items_per_s) + 1)
    return max(2 * min(batch, concurrency), concurrency + int(0.1 * items_per_s), 2)


def online_limit(concurrency: int, items_per_s: float) -> int:
    """Return the online calls to hold here: the concurrency plus 100 ms of throughput.

    No more: a call that waits in the engine's queue is beyond the reach of fairness.
    """
    return max(1, concurrency + int(0.1 * items_per_s))


def news_items(limit: int, job_class: str) -> int:
    """Return how many ended items are worth telling before the next repetition.

    An online call that waits for credit feels every one of them; a batch of bulk items does not.
    """
    return max(1, limit // (16 if job_class == "interactive" else 3))


def smoothed_rate(items_per_s: float, finished: int, elapsed_s: float) -> float:
    """Return the rate after a busy window in which `finished` items were answered."""
    newest = finished / elapsed_s
    if items_per_s <= 0:
        return newest
    return (1 - RATE_WEIGHT) * items_per_s + RATE_WEIGHT * newest
