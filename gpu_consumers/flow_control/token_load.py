"""The weighted tokens of the items that are at a replica and have not ended. Pure."""

from dataclasses import dataclass, field
from uuid import UUID

from topics.records.records import Batch


@dataclass(slots=True)
class _OpenBatch:
    item_count: int
    item_tokens: float  # mean of the items of the batch


@dataclass(slots=True)
class TokenLoad:
    """The load of one replica and class.

    A batch counts with what its batcher charged for it: prompt tokens, and expected output tokens
    times their weight. The items of a batch count with its mean, so an item that ends costs no look
    at its tokens. A batch of an older release, without a charge, counts with its estimated tokens.
    """

    _open: dict[UUID, _OpenBatch] = field(default_factory=dict)
    _tokens: float = 0.0

    @property
    def tokens(self) -> float:
        """The weighted tokens; 0 while nothing is here."""
        return max(0.0, self._tokens) if self._open else 0.0

    def add(self, batch: Batch, item_count: int) -> None:
        """Count items of a batch that arrived."""
        if not item_count:
            return
        known = self._open.get(batch.batch_id)
        if known is None:
            known = self._open[batch.batch_id] = _OpenBatch(0, _mean_tokens(batch))
        known.item_count += item_count
        self._tokens += item_count * known.item_tokens

    def remove(self, batch: Batch, item_count: int) -> None:
        """Count items of a batch that ended, were dropped or requeued."""
        known = self._open.get(batch.batch_id)
        if known is None:
            return
        self._tokens -= min(item_count, known.item_count) * known.item_tokens
        known.item_count -= item_count
        if known.item_count <= 0:
            del self._open[batch.batch_id]
            if not self._open:
                self._tokens = 0.0  # without the rounding errors of its sums


def _mean_tokens(batch: Batch) -> float:
    tokens, item_count = 0.0, 0
    for part in batch.parts:
        item_count += len(part.items)
        charged = part.charged
        if charged is None:
            charged = float(sum(item.token_count for item in part.items))
        tokens += charged
    return tokens / item_count if item_count else 0.0
