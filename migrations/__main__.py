"""`python -P -m migrations`: upgrade `MILLRACE_DATABASE_URL` to the newest revision."""

import logging
import os
import sys
from collections.abc import Mapping

from core.errors import MillraceError
from core.runtime.logs import configure_logs
from migrations.runner import upgrade
from storage.postgres.engines import DATABASE_UNAVAILABLE, driver_message
from storage.postgres.settings import DatabaseSettings

_LOG = logging.getLogger("migrations")


def main(env: Mapping[str, str]) -> int:
    """Apply missing revisions; return 1 for wrong settings or an unavailable database."""
    configure_logs("migrations")
    try:
        settings = DatabaseSettings.from_env(env)
        upgrade(settings.url.get_secret_value())
    except MillraceError as failure:
        _LOG.error("not upgraded", extra={"code": failure.code, "reason": str(failure)})
        return 1
    except DATABASE_UNAVAILABLE as failure:
        error = {"error": type(failure).__name__, "reason": driver_message(failure)}
        _LOG.error("not upgraded", extra=error)
        return 1
    _LOG.info("the schema is the newest")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
