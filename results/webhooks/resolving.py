"""Names to addresses that may be contacted: asked once, checked all, never asked again."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from core.open_files import ShortageError, is_shortage
from results.webhooks.addresses import Reach
from results.webhooks.urls import ReceiverUrl, is_address

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
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str], failure: Exception | None) -> None:
        if answer.done():  # whoever asked was cancelled
            return
        if failure is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(failure)

    def ask() -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, addresses, failure)

    try:
        threading.Thread(target=ask, name="look-up", daemon=True).start()
    except RuntimeError:  # no thread can be started
        raise ShortageError from None
    return await answer


async def look_up(url: ReceiverUrl, resolve: Resolver) -> list[str]:
    """Return the addresses of `url`'s host, which may be one. Raises OSError, UnicodeError."""
    return [url.host] if is_address(url.host) else await resolve(url.host, url.port)


async def allowed_addresses(looked_up: Awaitable[list[str]], reach: Reach) -> list[str]:
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
