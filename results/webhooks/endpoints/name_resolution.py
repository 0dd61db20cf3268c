"""Resolves a host once, checks all addresses, and connects only to those (no DNS rebinding).

Look-ups at one time are limited per process and tenant, since a slow name server blocks a thread.
The thread of an abandoned look-up keeps its slot until the name server answers.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from core.runtime.futures import run_in_daemon_thread
from core.runtime.open_files import ResourceExhaustedError, is_resource_exhaustion
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, is_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host and port to numeric addresses. Raises OSError."""

ADDRESSES_MAX: Final = 64

_SHARE: Final = 8  # a tenant gets this fraction of all slots
_WAIT_S: Final = 10.0  # within the margin of a claim


class AddressRefusedError(Exception):
    """The host has no address, or one that may not be contacted. Which of the two is not shown."""


async def system_resolver(host: str, port: int) -> list[str]:
    """Resolve with the system's resolver in a daemon thread, since a slow name server blocks it.

    Unlike an executor's thread, it does not delay the end of the process. Raises OSError,
    UnicodeError, ResourceExhaustedError.
    """

    def resolve() -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    try:
        addresses = run_in_daemon_thread(resolve, name="look-up")
    except RuntimeError:  # no thread can be started
        raise ResourceExhaustedError from None
    return await addresses


async def resolve_host(url: ReceiverUrl, resolve: Resolver) -> list[str]:
    """Resolve a URL's host unless it is an address. Raises OSError, UnicodeError."""
    return [url.host] if is_address(url.host) else await resolve(url.host, url.port)


async def allowed_addresses(looked_up: Awaitable[list[str]], policy: AddressPolicy) -> list[str]:
    """Return the addresses of a look-up if all of them may be contacted.

    Raises AddressRefusedError, and ResourceExhaustedError.
    """
    try:
        addresses = await looked_up
    except OSError as error:
        raise (
            ResourceExhaustedError if is_resource_exhaustion(error) else AddressRefusedError
        ) from None
    except UnicodeError:
        raise AddressRefusedError from None
    if len(addresses) > ADDRESSES_MAX or not policy.allows_all(addresses):
        raise AddressRefusedError
    return addresses


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
        except asyncio.CancelledError:
            share.release()
            raise
