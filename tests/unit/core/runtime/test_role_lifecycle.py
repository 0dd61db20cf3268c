"""Goal: every role ends with an exit code and one log line with the reason."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import REGISTRY

from core.errors import EngineDeadError, MillraceError, SettingsError
from core.runtime.logs import JsonFormatter
from core.runtime.metrics import ROLE_READY
from core.runtime.role_lifecycle import (
    EXIT_FAILURE,
    EXIT_INVALID_SETTINGS,
    EXIT_OK,
    report_ready,
    run_role,
)


class UnavailableError(Exception):
    """A driver's error."""


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, object]]]]:
    """Return the log lines of the role."""
    written: list[str] = []

    class ListHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler, logger = ListHandler(), logging.getLogger("core.runtime.role_lifecycle")
    handler.setFormatter(JsonFormatter("a-role"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in written]
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("failure", "exit_code", "code", "reason"),
    [
        (
            SettingsError("A_B: not a number"),
            EXIT_INVALID_SETTINGS,
            "invalid_settings",
            "A_B: not a",
        ),
        (EngineDeadError("It died.", name="m"), EXIT_FAILURE, "engine_dead", "It died."),
        (UnavailableError("INSERT secret"), EXIT_FAILURE, "service_away", "UnavailableError"),
        (ValueError("Failing row contains (a secret)"), EXIT_FAILURE, "defect", "ValueError."),
    ],
)
def test_a_failure_has_a_code_a_reason_and_an_exit_code(
    failure: Exception,
    exit_code: int,
    code: str,
    reason: str,
    lines: Callable[[], list[dict[str, object]]],
) -> None:
    def run() -> None:
        raise failure

    assert run_role(run, unavailable=(UnavailableError,)) == exit_code
    (line,) = lines()
    assert (line["event"], line["level"], line["code"]) == ("the role ends", "critical", code)
    assert reason in str(line["reason"])
    assert "secret" not in json.dumps(line)
    assert ("ValueError" in str(line.get("traceback"))) is (code == "defect")


@pytest.fixture
def not_ready() -> Iterator[None]:
    ROLE_READY.set(0)
    yield
    ROLE_READY.set(0)


@pytest.mark.usefixtures("not_ready")
def test_a_stopped_role_exits_with_0(lines: Callable[[], list[dict[str, object]]]) -> None:
    assert run_role(report_ready) == EXIT_OK
    assert [line["event"] for line in lines()] == ["ready"]
    assert REGISTRY.get_sample_value("millrace_role_ready") == 1


def test_report_ready_freezes_present_objects() -> None:
    program = """
import gc
from core.runtime.role_lifecycle import report_ready
before = gc.get_threshold()
report_ready()
print(gc.get_freeze_count() > 1000, gc.get_threshold() > before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "True"]


class RefusedError(MillraceError):
    """A restart does not help."""

    code = "refused"


def test_what_a_role_refuses_ends_it_like_invalid_settings(
    lines: Callable[[], list[dict[str, object]]],
) -> None:
    def run() -> None:
        raise RefusedError(name="m")

    assert run_role(run, refused=(RefusedError,)) == EXIT_INVALID_SETTINGS
    assert run_role(run) == EXIT_FAILURE
    refused, failed = lines()
    assert (refused["code"], refused["facts"]) == ("refused", {"name": "m"})
    assert failed["code"] == "refused"
