"""The lease on a sweep that one process at a time is enough for.

It expires by the database's clock when its holder dies or stalls; every step of a sweep is safe
without it.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from results.tables import sweep_leases
from storage.postgres.database_times import seconds

_NOW: Final = sa.func.clock_timestamp()


@dataclass(frozen=True, slots=True)
class SweepLease:
    """The lease `name`, as `holder` acquires it for `ttl_s` seconds."""

    engine: sa.Engine
    name: str
    holder: str  # names this process among all
    ttl_s: float

    def acquire(self) -> bool:
        """Acquire or extend the lease; False while another process holds it.

        Raises one of DATABASE_UNAVAILABLE.
        """
        until = _NOW + seconds(self.ttl_s)
        taken = insert(sweep_leases).values(name=self.name, holder=self.holder, expires_at=until)
        is_free = sa.or_(sweep_leases.c.holder == self.holder, sweep_leases.c.expires_at <= _NOW)
        statement = taken.on_conflict_do_update(
            index_elements=[sweep_leases.c.name],
            set_={"holder": taken.excluded.holder, "expires_at": taken.excluded.expires_at},
            where=is_free,
        ).returning(sweep_leases.c.name)
        with self.engine.begin() as connection:
            return connection.execute(statement).one_or_none() is not None
