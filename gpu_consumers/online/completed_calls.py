"""The calls that have ended on this replica: a second delivery of one is ignored."""

from collections import OrderedDict
from uuid import UUID

COMPLETED_MAX = 100_000
"""Calls that are remembered; the oldest are forgotten first."""


class CompletedCalls:
    """The newest ids of calls whose end is acknowledged."""

    def __init__(self, count_max: int = COMPLETED_MAX) -> None:
        self._count_max = count_max
        self._ids: OrderedDict[UUID, None] = OrderedDict()

    def add(self, request_id: UUID) -> None:
        """Remember a call."""
        self._ids[request_id] = None
        if len(self._ids) > self._count_max:
            self._ids.popitem(last=False)

    def __contains__(self, request_id: UUID) -> bool:
        """Return whether the call is remembered."""
        return request_id in self._ids
