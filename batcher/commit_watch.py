"""Stops a batcher when Postgres has lost commits that the log knows (`core.commit_watermark`)."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from core.commit_watermark import CHECK_INTERVAL_S
from core.runtime.futures import run_in_daemon_thread
from storage.postgres.engines import DATABASE_UNAVAILABLE

CheckCommits = Callable[[Mapping[UUID, int]], None]
"""Blocking: compares the database with the highest numbers on the log.

Raises CommitsLostError, and one of DATABASE_UNAVAILABLE.
"""


async def watch_commits(check: CheckCommits, log: Mapping[UUID, int]) -> None:
    """Check until cancelled; `log` changes as the log is read. Raises CommitsLostError."""
    while True:
        with suppress(*DATABASE_UNAVAILABLE):
            await run_in_daemon_thread(partial(check, log), name="batcher-commits")
        await asyncio.sleep(CHECK_INTERVAL_S)
