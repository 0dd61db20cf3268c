"""Keeps the texts of clients out of vLLM's log records: messages are kept, their arguments are not.

Applied to records, not to handlers or levels, so it holds for any logging configuration.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, Final

DEFAULT_LEVEL: Final = "ERROR"
"""Level without VLLM_LOGGING_LEVEL. As WARNING vLLM logs each weight that it converts."""

_DUMP_LOGGER: Final = "vllm.logging_utils.dump_input"
_PARSER_LOGGERS: Final = ("vllm.parser.", "vllm.reasoning.", "vllm.tool_parsers.")
"""Loggers whose messages may contain a model's output."""


def redact_vllm_logs() -> None:
    """Redact every record that vLLM makes from now on, and disable its dump of a failing step."""
    logging.getLogger(_DUMP_LOGGER).disabled = True
    logging.getLogger("vllm").setLevel(
        (os.environ.get("VLLM_LOGGING_LEVEL") or DEFAULT_LEVEL).upper()
    )
    make = logging.getLogRecordFactory()
    if not isinstance(make, _RedactingFactory):
        logging.setLogRecordFactory(_RedactingFactory(make))


class _RedactingFactory:
    """Makes records with `make`, without the arguments of vLLM's."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        name = record.name or ""  # `logging` makes records without a name
        if name.startswith(_PARSER_LOGGERS):
            record.msg = _parser_message(record)
            record.exc_info = None
        if name.partition(".")[0] == "vllm":
            record.args = ()
        return record


def _parser_message(record: logging.LogRecord) -> str:
    """Return the place of a parser's record and the class of its error."""
    kind = record.exc_info[0] if record.exc_info else None
    place = f"{record.funcName}, line {record.lineno}"
    return f"A parser complains in {place}{f': {kind.__name__}' if kind else ''}."
