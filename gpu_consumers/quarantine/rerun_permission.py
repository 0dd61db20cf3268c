"""Permission to run a redelivered call again: its caller knows which replies it has received."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from topics.records.records import CallRef

PERMISSION_S_MAX: Final = 3.0
"""Time for the caller's permission after the request is acknowledged; then it is sent again."""

REQUESTS_MAX: Final = 3
"""Requests before the call is dropped: its caller is done with it, or cannot be reached."""

SendRequest = Callable[[CallRef, UUID], asyncio.Future[None]]
"""Sends one request for permission; the future is done when it is acknowledged."""


class RerunPermissions:
    """Open requests for permission. Used on the event loop."""

    def __init__(self, send_request: SendRequest) -> None:
        self._send_request = send_request
        self._open: dict[UUID, asyncio.Future[None]] = {}

    async def request_rerun(self, call: CallRef, request_id: UUID) -> bool:
        """Return whether the caller permits to run the request again.

        A request may wait in the producer while its partition has no leader, so its time limit
        starts at its acknowledgement. The task that waits is cancelled when the call is aborted,
        expires, or loses its caller.
        """
        permitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request_id] = permitted
        try:
            for _ in range(REQUESTS_MAX):
                sent = self._send_request(call, request_id)
                await asyncio.wait([permitted, sent], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait([permitted], timeout=PERMISSION_S_MAX)
                if permitted.done():
                    return True
            return False
        finally:
            del self._open[request_id]

    def grant(self, request_ids: Iterable[UUID]) -> None:
        """Apply permissions of a caller; ids without an open request here are ignored."""
        for request_id in request_ids:
            waiting = self._open.get(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
