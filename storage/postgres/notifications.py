"""Waits for NOTIFY on a channel, on its own connection, which reconnects by itself."""

import threading
import time
from typing import Final

import psycopg
from psycopg import sql

from storage.postgres.engines import connect_options
from storage.postgres.settings import DatabaseSettings

_SLICE_S: Final = 0.25  # how soon `close` from another thread is noticed
_RETRY_S: Final = 0.5  # pause between attempts while the database is unavailable


class NotificationListener:
    """Reports notifications of a channel. They are hints: callers must also poll for work.

    One thread waits; any thread may close. While the database is unavailable, `wait` times out as
    if there were no notification, so the caller's loop continues at its own pace.
    """

    def __init__(
        self, settings: DatabaseSettings, channel: str, *, application_name: str = "millrace"
    ) -> None:
        """Connect at the first wait: a process may start before its database."""
        self._url = settings.sqlalchemy_url()
        self._options = connect_options(settings, application_name=application_name)
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(channel))
        self._closed = threading.Event()
        self._in_use = threading.Lock()
        self._connection: psycopg.Connection | None = None

    def wait(self, timeout_s: float) -> bool:
        """Return True after notifications, False after `timeout_s` without one or on close.

        Also True once after every (re)connection, because earlier notifications are lost. While the
        database does not answer, the wait may exceed `timeout_s` by the connect timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._in_use:
            while not self._closed.is_set():
                is_notified = self._attempt(deadline)
                if is_notified or time.monotonic() >= deadline:
                    return is_notified
        return False

    def close(self) -> None:
        """End a wait in another thread within 0.25 s, and disconnect."""
        self._closed.set()
        with self._in_use:
            self._disconnect()

    def __enter__(self) -> "NotificationListener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, deadline: float) -> bool:
        try:
            if self._connection is None:
                self._connect()
                return True
            return self._read_notifications(self._connection, deadline)
        except psycopg.OperationalError:
            self._disconnect()
            self._closed.wait(min(_RETRY_S, max(0.0, deadline - time.monotonic())))
            return False

    def _connect(self) -> None:
        # The engine's own translation of the URL, so that both connect to the same server.
        _, arguments = self._url.get_dialect()().create_connect_args(self._url)
        connection: psycopg.Connection = psycopg.connect(
            **{**arguments, **self._options}, autocommit=True
        )
        try:
            connection.execute(self._listen)
        except BaseException:  # also an interrupt: nothing else owns the connection
            connection.close()
            raise
        self._connection = connection

    def _read_notifications(self, connection: psycopg.Connection, deadline: float) -> bool:
        slice_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
        is_notified = any(True for _ in connection.notifies(timeout=slice_s, stop_after=1))
        if is_notified:
            for _ in connection.notifies(timeout=0):
                pass
        return is_notified

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
