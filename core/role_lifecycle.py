"""How a role begins and ends, in the one shape that its supervisor reads."""

import logging
from collections.abc import Callable
from typing import Final

from core import metrics
from core.errors import MillraceError, SettingsError
from core.garbage_collection import tune_garbage_collector

READY: Final = "ready"
EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_INVALID_SETTINGS: Final = 2
"""Exit codes of a role. After `EXIT_INVALID_SETTINGS` starting it again does not help."""

_LOG = logging.getLogger(__name__)


def report_ready() -> None:
    """Say that this role has begun its work; `millrace up` and health checks wait for it.

    What is loaded by now stays until the end, and the collector is told so.
    """
    tune_garbage_collector()
    metrics.ROLE_READY.set(1)
    _LOG.info(READY)


def run_role(run: Callable[[], object], *, unavailable: tuple[type[Exception], ...] = ()) -> int:
    """Run a role until a signal and return its exit code; the last line of its log says why.

    `unavailable` names what the role's services raise when they were away for too long. Of a defect the
    log has the traceback, without texts that may quote what clients sent.
    """
    try:
        run()
    except SettingsError as failure:
        _say_end(failure.code, str(failure))
        return EXIT_INVALID_SETTINGS
    except MillraceError as failure:
        # In a field of their own: the names of facts are anybody's, those of a log record are not.
        _say_end(failure.code, str(failure), facts=failure.facts)
        return EXIT_FAILURE
    except unavailable as failure:
        kind = f"{type(failure).__module__}.{type(failure).__name__}"
        # Without the message: a driver's may hold the statement and its values.
        _say_end("service_away", f"A service was away for too long: {kind}.")
        return EXIT_FAILURE
    except Exception as failure:  # noqa: BLE001  or Python would print the text of the error
        _say_end("defect", f"A defect: {type(failure).__name__}.", exc_info=True)
        return EXIT_FAILURE
    return EXIT_OK


def _say_end(code: str, reason: str, *, exc_info: bool = False, **more: object) -> None:
    told = {"code": code, "reason": reason, **more}
    _LOG.critical("the role ends", extra=told, exc_info=exc_info)
