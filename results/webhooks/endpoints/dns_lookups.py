"""Limits concurrent DNS look-ups, per process and tenant: a slow name server blocks a thread.

The thread of an abandoned look-up keeps its slot until the name server answers.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from results.webhooks.endpoints.name_resolution import Resolver, resolve_host
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, is_address

_SHARE: Final = 8  # a tenant gets this fraction of all slots
_WAIT_S: Final = 10.0  # within the margin of a claim


class DnsLookupsBusyError(Exception):
    """No slot for a look-up became free in time, which is no failure of the receiver."""


class DnsLookups:
    """The look-ups of one process, on one event loop."""

    def __init__(self, resolve: Resolver, *, count_max: int, wait_s: float = _WAIT_S) -> None:
        """`count_max` bounds the look-ups at one time."""
        self._resolve = resolve
        self._wait_s = wait_s
        self._slots = asyncio.Semaphore(count_max)
        self._share = max(1, count_max // _SHARE)
        # Of tenants with running or waiting look-ups.
        self._shares: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    async def start(self, tenant_id: UUID, url: ReceiverUrl) -> Awaitable[list[str]]:
        """Wait for a slot, start, and return an awaitable of the addresses of `url`'s host.

        Raises DnsLookupsBusyError.
        """
        if is_address(url.host):
            return resolve_host(url, self._resolve)
        share = self._shares.setdefault(tenant_id, asyncio.Semaphore(self._share))
        try:
            async with asyncio.timeout(self._wait_s):
                await self._acquire(share)
        except TimeoutError:
            raise DnsLookupsBusyError from None

        def release(ended: asyncio.Task[list[str]]) -> None:
            self._slots.release()
            share.release()
            if not ended.cancelled():
                ended.exception()  # marks it as retrieved, also when the caller gave up

        running = asyncio.create_task(resolve_host(url, self._resolve))
        running.add_done_callback(release)
        return asyncio.shield(running)

    async def _acquire(self, share: asyncio.Semaphore) -> None:
        await share.acquire()
        try:
            await self._slots.acquire()
        except BaseException:
            share.release()
            raise
