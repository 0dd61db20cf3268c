"""The notice that a cloud gives before it takes a spot GPU away: when the GPU goes, and what to do.

A notice is a file that appears or an answer 200 of a metadata server. Its body may hold the time,
as AWS writes it in `spot/instance-action`: `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`.
Pure.
"""

import ipaddress
import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

NOTICE_S: Final = 30.0
"""Time that a notice without a time leaves: the shortest notice of large clouds (Google Cloud,
Azure; AWS gives 120 s)."""

NOTICE_S_MAX: Final = 600.0
"""A time further away than this counts as this: a clock or a text is wrong."""

REQUEUE_S: Final = 5.0
"""Time before the end at which the replica stops its items, to requeue them and leave."""

BODY_BYTES_MAX: Final = 4096
"""Bytes of a notice that are read."""

_TIME: Final = re.compile(
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII
)


def leaves_at_s(body: bytes, *, now_s: float) -> float:
    """Return when the GPU goes, Unix time, by the first ISO time in a notice; it has UTC without
    an offset. A time in the past, and one that cannot be, is now and `NOTICE_S` from now.
    """
    found = _TIME.search(body[:BODY_BYTES_MAX])
    if found is None:
        return now_s + NOTICE_S
    try:
        at = datetime.fromisoformat(found.group().decode())
    except ValueError:
        return now_s + NOTICE_S
    at_s = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    return min(max(now_s, at_s), now_s + NOTICE_S_MAX)


def drain_grace_s(leaves_at_s: float, *, now_s: float, shutdown_grace_s: float) -> float:
    """Return how long items may run on while the replica drains; the rest is requeued.

    Without a notice (`leaves_at_s` 0) it is `shutdown_grace_s`, as on SIGTERM; with one, the time
    until `REQUEUE_S` before the GPU goes.
    """
    if not leaves_at_s:
        return shutdown_grace_s
    return min(max(0.0, leaves_at_s - REQUEUE_S - now_s), NOTICE_S_MAX)


def check_notice_url(url: str) -> None:
    """Raise ValueError for a URL that is not plain HTTP to this host or to a link-local address.

    A name other than `localhost` is refused: what it resolves to is not known.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.username is not None or parts.password is not None:
        raise ValueError("give a URL of http, without credentials")
    host = parts.hostname or ""
    _ = parts.port  # raises ValueError
    if host == "localhost":
        return
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("give a loopback or link-local address") from None
    if not (address.is_loopback or address.is_link_local):
        raise ValueError("give a loopback or link-local address")
