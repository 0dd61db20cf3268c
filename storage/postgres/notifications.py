"""Waiting for NOTIFY on a channel, on a connection of its own that mends itself."""

import threading
import time
from typing import Final

import psycopg
from psycopg import sql

from storage.postgres.engines import connect_options
from storage.postgres.settings import DatabaseSettings

_SLICE_S: Final = 0.25  # how soon `close` from another thread is noticed
_RETRY_S: Final = 0.5  # pause between attempts while the database is away


class NotificationListener:
    """Tells that a channel was notified. A hint to look, never the only way to find work.

    One thread waits; any thread may close. While the database is away, `wait` times out like
    an idle one, so the loop around it goes on at its own pace.
    """

    def __init__(
        self, settings: DatabaseSettings, channel: str, *, application_name: str = "millrace"
    ) -> None:
        """Connect at the first wait, not here: a process may start before its database."""
        self._url = settings.sqlalchemy_url()
        self._options = connect_options(settings, application_name=application_name)
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(channel))
        self._closed = threading.Event()
        self._in_use = threading.Lock()
        self._connection: psycopg.Connection | None = None

    def wait(self, timeout_s: float) -> bool:
        """Return True to look for work now, False after `timeout_s` of silence or on close.

        True also once after every (re)connection: what was sent before it is not heard.
        Any number that have arrived are one True. While the database does not answer,
        the wait may exceed `timeout_s` by the connect timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            while not self._closed.is_set():
                heard = self._attempt(deadline)
                if heard or time.monotonic() >= deadline:
                    return heard
        return False

    def close(self) -> None:
        """End a wait in another thread within a fraction of a second, and disconnect."""
        self._closed.set()
        with self._in_use:
            self._disconnect()

    def __enter__(self) -> "NotificationListener":
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def _attempt(self, deadline: float) -> bool:
        try:
            if self._connection is None:
                self._connect()
                return True
            return self._hear(self._connection, deadline)
        except psycopg.OperationalError:
            self._disconnect()
            self._closed.wait(min(_RETRY_S, max(0.0, deadline - time.monotonic())))
            return False

    def _connect(self) -> None:
        # The engine's translation of the URL, so that both reach the same server.
        _, arguments = self._url.get_dialect()().create_connect_args(self._url)
        connection: psycopg.Connection = psycopg.connect(
            **{**arguments, **self._options}, autocommit=True
        )
        try:
            connection.execute(self._listen)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _hear(self, connection: psycopg.Connection, deadline: float) -> bool:
        slice_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
        heard = any(True for _ in connection.notifies(timeout=slice_s, stop_after=1))
        if heard:
            for _ in connection.notifies(timeout=0):
                pass
        return heard

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
