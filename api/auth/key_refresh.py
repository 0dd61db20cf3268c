"""Background refresh of API keys in use."""

import asyncio
import logging
from typing import Final

from api.auth.key_cache import KeyCache
from api.runtime.database import Database, DatabaseUnavailableError
from tenancy.api_keys import working_keys

_LOG = logging.getLogger(__name__)

ROUNDS_PER_TTL: Final = 4
"""Refreshes within the time to live of an entry: one slow query does not let an entry expire."""


async def refresh_keys(keys: KeyCache, database: Database, every_s: float) -> None:
    """Refresh until cancelled. While Postgres is unavailable, entries expire."""
    while True:
        await asyncio.sleep(every_s)
        queried_s, queried = keys.now_s(), keys.take_used_hashes()
        if not queried:
            continue
        try:
            working = await database.run_across_tenants(working_keys, queried)
        except DatabaseUnavailableError:
            _LOG.warning("keys were not confirmed")
        else:
            keys.confirm(queried, working, queried_s)
