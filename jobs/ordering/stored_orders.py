"""Orders that a verdict names, and what they are expected to save."""

import logging
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from jobs import metrics

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """An order whose objects are stored."""

    key: str
    saved_tokens: int  # prompt tokens, beyond those that the order of the file saves


def record_order(job_id: UUID, order: StoredOrder) -> None:
    """Count and log an order once its verdict is recorded."""
    metrics.FILES_ORDERED.inc()
    metrics.ORDER_SAVED_TOKENS.inc(order.saved_tokens)
    facts = {"job": job_id.hex, "saved_tokens": order.saved_tokens}
    _LOG.info("items are ordered by prefix", extra=facts)
