"""A lease on a sweep, so that one of many finalisers runs it. Every step is safe without it.

Times are by the database's clock. A holder that dies or stalls is replaced when its lease expires.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from results.retention.tables import sweep_leases
from storage.postgres.intervals import seconds

_NOW = sa.func.clock_timestamp()


def acquire_sweep_lease(connection: sa.Connection, name: str, holder: str, *, ttl_s: float) -> bool:
    """Acquire or extend the lease for `ttl_s` seconds; False while another process holds it."""
    until = _NOW + seconds(ttl_s)
    taken = insert(sweep_leases).values(name=name, holder=holder, expires_at=until)
    statement = taken.on_conflict_do_update(
        index_elements=[sweep_leases.c.name],
        set_={"holder": taken.excluded.holder, "expires_at": taken.excluded.expires_at},
        where=sa.or_(sweep_leases.c.holder == holder, sweep_leases.c.expires_at <= _NOW),
    )
    return connection.execute(statement.returning(sweep_leases.c.name)).one_or_none() is not None
