"""Reports a role's readiness and its end, in the form that its supervisor reads."""

import logging
from collections.abc import Callable
from typing import Final

from core.errors import MillraceError, SettingsError
from core.runtime import metrics
from core.runtime.garbage_collection import collect_rarely, exclude_present_objects

READY: Final = "ready"
EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_INVALID_SETTINGS: Final = 2
"""Exit codes of a role. After `EXIT_INVALID_SETTINGS` a restart does not help."""

_LOG = logging.getLogger(__name__)


def report_ready() -> None:
    """Report that this role has started; `millrace up` and health checks wait for it.

    Also tunes the garbage collector: everything loaded by now stays until the process ends.
    """
    _tune_garbage_collector()
    metrics.ROLE_READY.set(1)
    metrics.IS_READY.set()
    _LOG.info(READY)


def run_role(
    run: Callable[[], object],
    *,
    unavailable: tuple[type[Exception], ...] = (),
    refused: tuple[type[MillraceError], ...] = (),
) -> int:
    """Run a role until a signal and return its exit code; its last log line gives the reason.

    `unavailable`: exceptions of services that did not answer for too long. `refused`: errors that,
    like those of settings, a restart does not cure. A defect is logged with
    its traceback, without texts that may quote clients' data.
    """
    final: tuple[type[MillraceError], ...] = (SettingsError, *refused)
    try:
        run()
    except final as failure:
        _log_end(failure.code, str(failure), facts=failure.facts)
        return EXIT_INVALID_SETTINGS
    except MillraceError as failure:
        # `facts` is a field of its own: a fact may have the name of a log record's attribute.
        _log_end(failure.code, str(failure), facts=failure.facts)
        return EXIT_FAILURE
    except unavailable as failure:
        kind = f"{type(failure).__module__}.{type(failure).__name__}"
        # Without the message: a driver's may hold the statement and its values.
        _log_end("service_away", f"A service was unavailable for too long: {kind}.")
        return EXIT_FAILURE
    except Exception as failure:  # noqa: BLE001  Python would print the text of the error
        _log_end("defect", f"A defect: {type(failure).__name__}.", exc_info=True)
        return EXIT_FAILURE
    return EXIT_OK


def _log_end(code: str, reason: str, *, exc_info: bool = False, **more: object) -> None:
    extra = {"code": code, "reason": reason, **more}
    _LOG.critical("the role ends", extra=extra, exc_info=exc_info)


def _tune_garbage_collector() -> None:
    """Exclude all present objects from collection, and collect the others less often.

    Reference counting frees what an item or a call leaves. A collection traverses the rows and
    records in memory without finding garbage: up to 20 % of an item's CPU, and a pause of every
    stream of an API process.
    """
    exclude_present_objects()
    collect_rarely()
