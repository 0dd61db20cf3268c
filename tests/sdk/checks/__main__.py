"""Run checks by name against the site on standard input; print one JSON line for each."""

import asyncio
import inspect
import json
import signal
import sys
import traceback
from types import FrameType

import openai

from tests.sdk.checks.catalogue import SIMULATED, VLLM, Check, checks
from tests.sdk.checks.site import Site

CHECK_S_MAX = 120


def run(check: Check, site: Site) -> str | None:
    """Return the failure of a check, or None."""
    signal.alarm(CHECK_S_MAX)
    try:
        result = check(site)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except Exception:  # noqa: BLE001  any error is this check's failure
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
    return None


def _too_slow(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"The check ran {CHECK_S_MAX} s.")


def main() -> None:
    """Run the checks named on the command line."""
    signal.signal(signal.SIGALRM, _too_slow)
    site, known = Site.read(), checks(SIMULATED + VLLM, openai.__version__)
    for name in sys.argv[1:]:
        failure = run(known[name], site)
        report = {"check": name, "client": openai.__version__, "failure": failure}
        print(json.dumps(report), flush=True)  # noqa: T201  the output is the report


if __name__ == "__main__":
    main()
