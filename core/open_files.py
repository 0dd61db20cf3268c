"""Files that this process may have open, one for each connection, and what it may be short of."""

import errno
import logging
import resource
import socket
from typing import Final

_LOG = logging.getLogger(__name__)

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


class ResourceExhaustedError(Exception):
    """This process had no file, memory or thread for a try; of its peer this says nothing."""


def is_resource_exhaustion(error: OSError) -> bool:
    """Whether a call failed for want of something of our own."""
    if isinstance(error, socket.gaierror):  # numbers of its own
        return error.errno == socket.EAI_MEMORY
    return error.errno in _SHORT


def request_open_file_limit(wanted: int) -> None:
    """Raise the soft limit to `wanted`; where the hard one is lower, go on and say so once."""
    if (allowed := raise_open_file_limit(wanted)) < wanted:
        _LOG.warning(
            "fewer open files are allowed than connections may need: raise the hard limit "
            "(ulimit -Hn)",
            extra={"wanted": wanted, "allowed": allowed},
        )


def raise_open_file_limit(wanted: int) -> int:
    """Raise the soft limit to `wanted`, as far as the hard one lets; return what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
