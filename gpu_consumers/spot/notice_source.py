"""Reads the notice of a spot GPU from a file or from a metadata server on this host."""

import asyncio
import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from core.clock import Clock
from gpu_consumers.spot.spot_notice import BODY_BYTES_MAX, leaves_at_s

_LOG = logging.getLogger(__name__)

POLL_S: Final = 1.0
"""Time between two looks for a notice."""

URL_TIMEOUT_S: Final = 0.5
"""Timeout of a request to the metadata server."""

_OK: Final = 200

ReadNotice = Callable[[], Awaitable[bytes | None]]
"""Returns the body of a notice, None while there is none."""


async def read_file_notice(path: Path) -> bytes | None:
    """Return the content of a file that has appeared; an empty one counts, too."""
    return await asyncio.to_thread(_read_file, path)


async def read_url_notice(url: str) -> bytes | None:
    """Return the body of an answer 200; None for any other, a redirect or no answer in time."""
    return await asyncio.to_thread(_read_url, url)


async def watch_notice(
    sources: list[ReadNotice],
    on_notice: Callable[[float], None],
    *,
    clock: Clock,
    stop: threading.Event,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Look for a notice every second; report once when the GPU goes, Unix time, and return.

    It returns without a notice once `stop` is set.
    """
    while not stop.is_set():
        for read in sources:
            body = await read()
            if body is not None:
                at_s = leaves_at_s(body, now_s=clock.wall_s())
                _LOG.warning("the GPU is taken away", extra={"in_s": round(at_s - clock.wall_s())})
                on_notice(at_s)
                return
        await sleep(POLL_S)


def _read_file(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(BODY_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as failure:
        _LOG.warning("the notice file cannot be read", extra={"reason": failure.strerror})
        return None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: the answer counts as no notice."""


# Without the proxies of the environment: a proxy would be asked for a link-local address.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def _read_url(url: str) -> bytes | None:
    # Errors of HTTP, of the URL and timeouts are OSErrors.
    try:
        with _OPENER.open(url, timeout=URL_TIMEOUT_S) as answer:
            if answer.status != _OK:
                return None
            return bytes(answer.read1(BODY_BYTES_MAX))  # one wait for data at most
    except (OSError, ValueError, http.client.HTTPException):
        return None
