"""All of Postgres' connections are taken: whoever needs a new one meets "too many clients"."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from chaos.errors import DrillError
from chaos.faults.healing import Heal
from storage.postgres.engines import DATABASE_AWAY, create_engine
from storage.postgres.settings import DatabaseSettings

NAME: Final = "chaos-takes-all"
CONNECTIONS_MAX: Final = 200
TAKE_S_MAX: Final = 15.0
_PAUSE_S: Final = 0.02

_END_OTHERS: Final = sa.text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND application_name <> :name"
)


def exhaust_connections(database_url: str) -> Heal:
    """Take every connection, those that are kept for superusers too, and hold them.

    A pool would go on with the connections that it has, so these are ended: what they leave is
    taken before their owners get it again, or in the next round. Needs a superuser. Raises
    DrillError when others still have some after `TAKE_S_MAX`.
    """
    settings = DatabaseSettings.model_validate(
        {"url": database_url, "pool_size": CONNECTIONS_MAX, "connect_timeout_s": 2}
    )
    engine = create_engine(settings, application_name=NAME)
    with contextlib.ExitStack() as taken:
        taken.callback(engine.dispose)
        _take_until_alone(lambda: taken.enter_context(engine.connect()))
        return taken.pop_all().close


def _take_until_alone(connect: Callable[[], sa.Connection]) -> None:
    asking = connect().execution_options(isolation_level="AUTOCOMMIT")
    held = [asking]
    deadline_s = time.monotonic() + TAKE_S_MAX
    rounds_alone = 0
    while rounds_alone < 2:  # the second one takes what was free at the end of the first
        _take_free(connect, held)
        others = asking.execute(_END_OTHERS, {"name": NAME}).scalar_one()
        rounds_alone = 0 if others else rounds_alone + 1
        if time.monotonic() > deadline_s:
            raise DrillError("others still have connections to Postgres")
        time.sleep(_PAUSE_S)  # a backend that was ended leaves its place a moment later


def _take_free(connect: Callable[[], sa.Connection], held: list[sa.Connection]) -> None:
    while len(held) < CONNECTIONS_MAX:
        try:
            held.append(connect())
        except DATABASE_AWAY:
            return
    raise DrillError(f"this Postgres has more than {CONNECTIONS_MAX} connections")
