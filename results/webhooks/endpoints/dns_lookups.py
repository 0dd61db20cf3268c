"""Look-ups in turn: a slow name server holds a thread to the end, so a tenant has a share of them.

A try that is given up leaves its thread behind: that place is taken until the name server answers.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from results.webhooks.endpoints.name_resolution import Resolver, look_up
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, is_address

_SHARE: Final = 8  # of all places one tenant has this part
_WAIT_S: Final = 10.0  # within the margin of a claim


class DnsLookupsBusyError(Exception):
    """There was no place for a look-up in time; of the receiver this says nothing."""


class DnsLookups:
    """Of one process; used on one loop."""

    def __init__(self, resolve: Resolver, *, count_max: int, wait_s: float = _WAIT_S) -> None:
        """`count_max` at once in all."""
        self._resolve = resolve
        self._wait_s = wait_s
        self._places = asyncio.Semaphore(count_max)
        self._share = max(1, count_max // _SHARE)
        # Those of tenants that look up, or wait for it, right now.
        self._shares: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    async def start(self, tenant_id: UUID, url: ReceiverUrl) -> Awaitable[list[str]]:
        """Wait for a place, begin, and return what gives the addresses of `url`'s host.

        Raises DnsLookupsBusyError.
        """
        if is_address(url.host):
            return look_up(url, self._resolve)
        share = self._shares.setdefault(tenant_id, asyncio.Semaphore(self._share))
        try:
            async with asyncio.timeout(self._wait_s):
                await self._enter(share)
        except TimeoutError:
            raise DnsLookupsBusyError from None

        def leave(ended: asyncio.Task[list[str]]) -> None:
            self._places.release()
            share.release()
            if not ended.cancelled():
                ended.exception()  # whoever asked may have given up: then nobody else takes it

        running = asyncio.create_task(look_up(url, self._resolve))
        running.add_done_callback(leave)
        return asyncio.shield(running)

    async def _enter(self, share: asyncio.Semaphore) -> None:
        await share.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            share.release()
            raise
