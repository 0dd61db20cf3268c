"""Names to addresses that may be contacted: asked once, checked all, never asked again."""

import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from core.futures import in_daemon
from core.open_files import ShortageError, is_shortage
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, is_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to addresses in numbers. Raises OSError."""

ADDRESSES_MAX: Final = 64


class AddressRefusedError(Exception):
    """The host has no address, or one that may not be contacted; which, is not told."""


async def system_resolver(host: str, port: int) -> list[str]:
    """Ask the system, in a thread of its own: a slow name server blocks it, and whoever waits.

    The end of the process waits for no such thread, as it would for an executor's. Raises OSError,
    UnicodeError, ShortageError.
    """

    def ask() -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    try:
        addresses = in_daemon(ask, name="look-up")
    except RuntimeError:  # no thread can be started
        raise ShortageError from None
    return await addresses


async def look_up(url: ReceiverUrl, resolve: Resolver) -> list[str]:
    """Return the addresses of `url`'s host, which may be one. Raises OSError, UnicodeError."""
    return [url.host] if is_address(url.host) else await resolve(url.host, url.port)


async def allowed_addresses(looked_up: Awaitable[list[str]], reach: AddressPolicy) -> list[str]:
    """Return what a look-up gives.

    Raises AddressRefusedError, also for a part of the addresses, and ShortageError.
    """
    try:
        addresses = await looked_up
    except OSError as error:
        raise (ShortageError if is_shortage(error) else AddressRefusedError) from None
    except UnicodeError:
        raise AddressRefusedError from None
    if len(addresses) > ADDRESSES_MAX or not reach.allows_all(addresses):
        raise AddressRefusedError
    return addresses
