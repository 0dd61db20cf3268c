"""Adds a name to errors of the operating system that have none."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming_os_errors(name: str) -> Iterator[None]:
    """Add a user's path or a stream's name to an OSError of the block."""
    try:
        yield
    except OSError as failure:
        if failure.errno is None:
            raise
        raise OSError(failure.errno, failure.strerror, name) from failure
