"""Requests that have ended here: a second delivery of one is ignored."""

from collections import OrderedDict
from uuid import UUID

ENDED_MAX = 100_000
"""Requests that are remembered; the oldest are forgotten first."""


class EndedCalls:
    """The newest ids of ended requests."""

    def __init__(self, count_max: int = ENDED_MAX) -> None:
        """Nothing has ended."""
        self._count_max = count_max
        self._ids: OrderedDict[UUID, None] = OrderedDict()

    def add(self, request_id: UUID) -> None:
        """A request has ended, and everything that had to be said is acknowledged."""
        self._ids[request_id] = None
        if len(self._ids) > self._count_max:
            self._ids.popitem(last=False)

    def __contains__(self, request_id: UUID) -> bool:
        """Whether the request is remembered."""
        return request_id in self._ids
