"""Resolves a host once, checks all addresses, and connects only to those (no DNS rebinding)."""

import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from core.futures import run_in_daemon_thread
from core.open_files import ResourceExhaustedError, is_resource_exhaustion
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.receiver_urls import ReceiverUrl, is_address

Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host and port to numeric addresses. Raises OSError."""

ADDRESSES_MAX: Final = 64


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
