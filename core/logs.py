"""Structured logs: one JSON object a line on stderr. Prompts, outputs and keys never enter one."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Render a log record and its `extra` fields as one JSON object."""

    def __init__(self, role: str) -> None:
        """`role` is written to every line."""
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line. A traceback keeps its frames and drops the message's arguments."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "role": self._role,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logs(role: str) -> None:
    """Send every logger of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("aiokafka", "faust", "mode", "botocore", "urllib3", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
