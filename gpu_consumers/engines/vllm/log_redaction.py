"""What vLLM logs, in our lines and without texts of clients: its sentences, not what fills them.

By records, not by handlers or levels: it holds whatever an operator configures, in every process.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, Final

DEFAULT_LEVEL: Final = "ERROR"
"""Where VLLM_LOGGING_LEVEL says nothing else. It warns of each weight that it converts."""

_DUMP: Final = "vllm.logging_utils.dump_input"
_PARSERS: Final = ("vllm.parser.", "vllm.reasoning.", "vllm.tool_parsers.")
"""Loggers whose sentences themselves may be made of what a model wrote."""


def redact_vllm_logs() -> None:
    """Strip every record that vLLM makes from now on, and silence its dump of a failing step."""
    logging.getLogger(_DUMP).disabled = True
    logging.getLogger("vllm").setLevel(
        (os.environ.get("VLLM_LOGGING_LEVEL") or DEFAULT_LEVEL).upper()
    )
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Stripping):
        logging.setLogRecordFactory(_Stripping(make))


class _Stripping:
    """Makes records as `make` does, but for what vLLM's are filled with."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *given: Any, **named: Any) -> logging.LogRecord:
        record = self._make(*given, **named)
        name = record.name or ""  # `logging` itself makes records of nobody
        if name.startswith(_PARSERS):
            record.msg = _failure(record)
            record.exc_info = None
        if name.partition(".")[0] == "vllm":
            record.args = ()
        return record


def _failure(record: logging.LogRecord) -> str:
    """Say where a parser complains, and about which class of error."""
    kind = record.exc_info[0] if record.exc_info else None
    place = f"{record.funcName}, line {record.lineno}"
    return f"A parser complains in {place}{f': {kind.__name__}' if kind else ''}."
