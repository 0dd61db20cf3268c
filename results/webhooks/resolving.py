"""Names to addresses that may be contacted: asked once, checked all, never asked again."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, TypeAlias

from results.webhooks.addresses import Reach
from results.webhooks.urls import ReceiverUrl, is_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to addresses in numbers. Raises OSError."""

ADDRESSES_MAX: Final = 64


class AddressRefusedError(Exception):
    """The host has no address, or one that may not be contacted; which, is not told."""


def system_resolver(threads: Executor) -> Resolver:
    """Return the system's look-up, in `threads` of its own: a slow name server blocks a thread."""

    def look_up(host: str, port: int) -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    async def resolve(host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(threads, look_up, host, port)

    return resolve


async def look_up(url: ReceiverUrl, resolve: Resolver) -> list[str]:
    """Return the addresses of `url`'s host, which may be one. Raises OSError, UnicodeError."""
    return [url.host] if is_address(url.host) else await resolve(url.host, url.port)


async def allowed_addresses(looked_up: Awaitable[list[str]], reach: Reach) -> list[str]:
    """Return what a look-up gives. Raises AddressRefusedError, also for a part of the addresses."""
    try:
        addresses = await looked_up
    except (OSError, UnicodeError):
        raise AddressRefusedError from None
    if len(addresses) > ADDRESSES_MAX or not reach.allows_all(addresses):
        raise AddressRefusedError
    return addresses
