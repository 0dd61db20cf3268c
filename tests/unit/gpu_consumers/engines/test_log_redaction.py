"""Goal: vLLM's log records keep their messages and lose the clients' texts."""

import logging
from collections.abc import Iterator

import pytest

from gpu_consumers.engines.vllm.log_redaction import redact_vllm_logs

SECRET = "what a client said"
PARSER = "vllm.tool_parsers.hermes_tool_parser"
CORE = "vllm.v1.engine.core"


@pytest.fixture(autouse=True)
def _stripped() -> Iterator[None]:
    make, level = logging.getLogRecordFactory(), logging.getLogger("vllm").level
    redact_vllm_logs()
    yield
    logging.setLogRecordFactory(make)
    logging.getLogger("vllm").setLevel(level)


def said(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert SECRET not in caplog.text  # a handler that renders tracebacks
    return record.getMessage()


def test_parser_record_names_place_and_error_class(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError(SECRET)
    except ValueError as failure:
        logging.getLogger(PARSER).exception(f"Error: {failure}")  # noqa: TRY401 - as vLLM does
    text = said(caplog)
    assert text.startswith(
        "A parser complains in test_parser_record_names_place_and_error_class, line "
    )
    assert text.endswith(": ValueError.")


@pytest.mark.parametrize("name", [PARSER, "vllm.parser.x", "vllm.reasoning.x"])
def test_parser_message_is_redacted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(name).error("It wrote " + SECRET)
    assert said(caplog).startswith("A parser complains in ")


@pytest.mark.parametrize("name", [CORE, "vllm"])
def test_arguments_are_redacted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(name).error("The grammar refused %s of %s.", SECRET, {"a": 1})
    assert said(caplog) == "The grammar refused %s of %s."


def test_info_records_are_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(CORE).warning("Loading took 2 s.")
    assert caplog.records == []


def test_other_loggers_are_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("vllmish").error("%d of %s", 1, "x")
    assert said(caplog) == "1 of x"
    assert logging.makeLogRecord({}).getMessage() == ""
