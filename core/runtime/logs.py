"""Structured logs: one JSON object a line on stderr, without prompts, outputs or keys."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from core.errors import MillraceError

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a log record and its `extra` fields as one JSON object."""

    def __init__(self, role: str) -> None:
        """`role` is a field of every line."""
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line. No field of `extra` replaces a standard field.

        A traceback holds frames and classes only: the text of a third-party error may quote
        clients' data.
        """
        line = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        line |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "role": self._role,
            "logger": record.name,
            "event": _event(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(_traceback(record.exc_info[1], set()))
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logs(role: str) -> None:
    """Send every logger of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("aiokafka", "faust", "mode", "botocore", "urllib3", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _event(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.name == "asyncio" and record.exc_info:
        return message.partition("\n")[0]  # the later lines hold the error's text
    return message


def _traceback(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Yield the traceback of an error and its causes, without texts of third-party errors."""
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _traceback(before, seen)
        yield "then\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{_name(error)}\n"
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _traceback(member, seen)


def _name(error: BaseException) -> str:
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, MillraceError):
        return f"{name}: {error.code}: {error}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name}: {os.strerror(error.errno)}"  # the path may be a user's
    return name
