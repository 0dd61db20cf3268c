"""Adds a file name to OSErrors that carry none."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def name_os_errors(filename: str) -> Iterator[None]:
    """Set `filename`, a path of the user or a stream, on each OSError that the block raises."""
    try:
        yield
    except OSError as failure:
        if failure.errno is None:
            raise
        raise OSError(failure.errno, failure.strerror, filename) from failure
