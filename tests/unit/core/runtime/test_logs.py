"""Goal: a log line has its five fields and no text of third-party errors."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable

import pytest

from core.errors import RecordUnreadableError
from core.runtime.logs import JsonFormatter

SECRET = "secret prompt text"


def line_of(text: str, /, **given: object) -> dict[str, object]:
    record = logging.getLogger().makeRecord(
        "millrace", logging.ERROR, "file.py", 1, text, (), sys.exc_info(), extra=given
    )
    line = json.loads(JsonFormatter("intake").format(record))
    assert isinstance(line, dict)
    return line


def fail() -> None:
    raise ValueError(SECRET)


def fail_with_a_cause() -> None:
    try:
        fail()
    except ValueError as cause:
        raise KeyError(SECRET) from cause


def fail_while_handling() -> None:
    try:
        fail()
    except ValueError:
        raise KeyError(SECRET)  # noqa: B904  the context is the point


def fail_together() -> None:
    try:
        fail()
    except ValueError as member:
        raise ExceptionGroup(SECRET, [member, KeyError(SECRET)]) from None


@pytest.mark.parametrize("act", [fail, fail_with_a_cause, fail_while_handling, fail_together])
def test_a_traceback_has_frames_and_classes_but_no_text(act: Callable[[], None]) -> None:
    try:
        act()
    except Exception:  # noqa: BLE001  whatever it is
        line = line_of("failed")

    text = str(line["traceback"])
    assert SECRET not in text
    assert "builtins.ValueError\n" in text
    assert "in fail\n" in text
    assert ("builtins.KeyError\n" in text) is (act is not fail)


def test_millrace_errors_show_code_and_reason_and_os_errors_their_errno() -> None:
    try:
        raise OSError(28, SECRET, SECRET)
    except OSError as full:
        try:
            raise RecordUnreadableError("the chunk is empty") from full
        except RecordUnreadableError:
            text = str(line_of("failed")["traceback"])

    assert "core.errors.RecordUnreadableError: record_unreadable: the chunk is empty" in text
    assert "OSError: No space left on device" in text
    assert SECRET not in text


def test_a_cyclic_chain_of_causes_ends() -> None:
    one, two = ValueError(SECRET), KeyError(SECRET)
    one.__context__, two.__context__ = two, one
    try:
        raise one
    except ValueError:
        assert str(line_of("failed")["traceback"]).count("ValueError") <= 2  # a frame and a name


def test_extra_fields_never_replace_standard_fields() -> None:
    line = line_of("sent", event="batch.completed", time="noon", level=1, role="x", logger="y", n=2)

    assert (line["event"], line["level"], line["role"]) == ("sent", "error", "intake")
    assert line["logger"] == "millrace"
    assert str(line["time"]).startswith("20")
    assert line["n"] == 2
    assert "traceback" not in line


def test_an_unawaited_task_shows_no_text(caplog: pytest.LogCaptureFixture) -> None:
    async def lose_a_task() -> None:
        async def task() -> None:
            fail()

        lost = asyncio.create_task(task())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lost.done()

    asyncio.run(lose_a_task())

    (record,) = (record for record in caplog.records if record.name == "asyncio")
    text = JsonFormatter("api").format(record)
    assert "Task exception was never retrieved" in text
    assert SECRET not in text
