"""What an error of the operating system is about, where the system does not say it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def name_os_errors(what: str) -> Iterator[None]:
    """Let an OSError of the block name `what`: a path of the user's, or a stream."""
    try:
        yield
    except OSError as failure:
        if failure.errno is None:
            raise
        raise OSError(failure.errno, failure.strerror, what) from failure
