"""Raises this process's limit of open files and recognises exhausted resources."""

import errno
import logging
import resource
import socket
from typing import Final

_LOG = logging.getLogger(__name__)

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


class ResourceExhaustedError(Exception):
    """This process lacked a file, memory or a thread. The error says nothing about the peer."""


def is_resource_exhaustion(error: OSError) -> bool:
    """Whether a call failed because this process or host lacks a resource."""
    if isinstance(error, socket.gaierror):  # has its own error numbers
        return error.errno == socket.EAI_MEMORY
    return error.errno in _EXHAUSTED


def request_open_file_limit(wanted: int) -> None:
    """Raise the soft limit to `wanted`; log a warning when the hard limit is lower."""
    if (allowed := raise_open_file_limit(wanted)) < wanted:
        _LOG.warning(
            "fewer open files are allowed than connections may need: raise the hard limit "
            "(ulimit -Hn)",
            extra={"wanted": wanted, "allowed": allowed},
        )


def raise_open_file_limit(wanted: int) -> int:
    """Raise the soft limit to `wanted` or the hard limit; return the lower of the two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
