"""Logs why estimates are missing, once for each type of exception: each request may fail."""

import logging
from typing import Final

_LOG: Final = logging.getLogger(__name__)


class EstimateFailures:
    """Failures of estimates in this process. A failed estimate is left out and fails nothing."""

    def __init__(self) -> None:
        self._logged: set[type[Exception]] = set()

    def log(self, failure: Exception) -> None:
        """Log a failure unless one of its type was logged before."""
        if type(failure) not in self._logged:
            self._logged.add(type(failure))
            kind = type(failure).__name__
            _LOG.error("estimates are left out", extra={"error_type": kind}, exc_info=failure)
