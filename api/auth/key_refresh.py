"""Keys in use are confirmed before their time is up."""

import asyncio
import logging
from typing import Final

from api.auth.key_cache import KeyCache
from api.runtime.database import Database, DatabaseUnavailableError
from tenancy.api_keys import working_keys

_LOG = logging.getLogger(__name__)

ROUNDS_PER_TTL: Final = 4
"""How often a key is looked at in its time: one slow answer does not let it run out."""


async def refresh_keys(keys: KeyCache, database: Database, every_s: float) -> None:
    """Confirm until cancelled; while Postgres is away keys run out."""
    while True:
        await asyncio.sleep(every_s)
        asked_s, asked = keys.now_s(), keys.in_use()
        if not asked:
            continue
        try:
            working = await database.run_across_tenants(working_keys, asked)
        except DatabaseUnavailableError:
            _LOG.warning("keys were not confirmed")
        else:
            keys.confirm(asked, working, asked_s)
