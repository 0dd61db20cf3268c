"""Faults of connections: TCP faults between a host and a service, and all of Postgres's taken."""

import contextlib
import time
from collections.abc import Callable
from typing import Final, cast

import sqlalchemy as sa

from chaos.errors import DrillError
from chaos.faults.healing import Heal, already_healed
from chaos.installations.installation import Installation
from chaos.installations.proxy import Mode
from storage.postgres.engines import DATABASE_UNAVAILABLE, create_engine
from storage.postgres.settings import DatabaseSettings

NAME: Final = "chaos-takes-all"
CONNECTIONS_MAX: Final = 200
TAKE_S_MAX: Final = 15.0
_PAUSE_S: Final = 0.02

_END_OTHERS: Final = sa.text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND application_name <> :name"
)


def set_proxy_mode(installation: Installation, target: str) -> Heal:
    """Set the mode of a proxy route, or reset its connections once (`reset`).

    A target is `route:mode`, such as `kafka-a:blackhole`.
    """
    route, _, mode = target.partition(":")
    if mode == "reset":
        installation.proxy.reset(route)
        return already_healed
    installation.proxy.set_mode(route, cast("Mode", mode))
    return lambda: installation.proxy.set_mode(route, "pass")


def exhaust_connections(database_url: str) -> Heal:
    """Take and hold every connection of Postgres, including those for superusers.

    A pool would keep using its connections, so they are terminated, and the freed ones are taken
    before their owners reconnect, or in the next round. Needs a superuser. Raises DrillError when
    other clients still have connections after `TAKE_S_MAX`.
    """
    settings = DatabaseSettings.model_validate(
        {"url": database_url, "pool_size": CONNECTIONS_MAX, "connect_timeout_s": 2}
    )
    engine = create_engine(settings, application_name=NAME)
    with contextlib.ExitStack() as taken:
        taken.callback(engine.dispose)
        _take_until_exclusive(lambda: taken.enter_context(engine.connect()))
        return taken.pop_all().close


def _take_until_exclusive(connect: Callable[[], sa.Connection]) -> None:
    admin = connect().execution_options(isolation_level="AUTOCOMMIT")
    connections = [admin]
    deadline_s = time.monotonic() + TAKE_S_MAX
    exclusive_rounds = 0
    while exclusive_rounds < 2:  # the second takes connections freed by the first
        _take_free(connect, connections)
        others = admin.execute(_END_OTHERS, {"name": NAME}).scalar_one()
        exclusive_rounds = 0 if others else exclusive_rounds + 1
        if time.monotonic() > deadline_s:
            raise DrillError("others still have connections to Postgres")
        time.sleep(_PAUSE_S)  # a terminated backend frees its slot a moment later


def _take_free(connect: Callable[[], sa.Connection], connections: list[sa.Connection]) -> None:
    while len(connections) < CONNECTIONS_MAX:
        try:
            connections.append(connect())
        except DATABASE_UNAVAILABLE:
            return
    raise DrillError(f"this Postgres has more than {CONNECTIONS_MAX} connections")
