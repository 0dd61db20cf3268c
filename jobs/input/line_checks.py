"""Checks one line of an input file against its job. Pure."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Final

import msgspec

from core.bodies.body_limit_settings import BodyLimits
from core.bodies.body_limits import ExceededLimit, find_exceeded_count, find_exceeded_field
from core.limits import CUSTOM_ID_CHARS_MAX


class ErrorCode(StrEnum):
    """Why an input file is rejected; the value is the `code` that clients see."""

    INVALID_JSON_LINE = "invalid_json_line"
    LINE_TOO_LONG = "line_too_long"
    MISSING = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    INVALID_METHOD = "invalid_method"
    URL_MISMATCH = "url_mismatch"
    MODEL_MISMATCH = "model_mismatch"
    SEVERAL_MODELS_OFF = "several_models_off"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_RETIRED = "model_retired"
    TOO_MANY_MODELS = "too_many_models"
    ENDPOINT_NOT_SUPPORTED = "endpoint_not_supported"
    EMPTY_FILE = "empty_file"
    TOO_MANY_TASKS = "too_many_tasks"
    DEADLINE_INFEASIBLE = "deadline_infeasible"  # of the entire job
    FILE_NOT_FOUND = "file_not_found"
    NOT_VALIDATED = "batch_expired"  # the completion window ended before the validation


@dataclass(frozen=True, slots=True)
class LineError:
    """An error as a client sees it; the message never quotes the file."""

    code: ErrorCode
    message: str
    param: str | None = None
    line: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the entry of the column `jobs.errors`."""
        return asdict(self) | {"code": self.code.value}


NESTING_MAX: Final = 128
"""Nesting levels of objects and arrays in one line, including the line's own object.

An explicit limit: the interpreter's limit depends on the depth of the caller's stack, so a line
that one process can read could fail in a later stage.
"""

_TOO_DEEP: Final = f"This line is nested deeper than {NESTING_MAX} levels."
_SHALLOW_BYTES: Final = 2 * NESTING_MAX  # a shorter line cannot have more brackets
_NO_JSON: Final = "This line is not parseable as valid JSON."
_DECODE: Final = msgspec.json.Decoder().decode
_SKIP: Final = msgspec.json.Decoder(msgspec.defstruct("_Line", [])).decode


def parse_line(line: bytes, *, has_few_values: bool = False) -> dict[str, Any] | str:
    """Return the object in `line`, or the reason why it is not valid.

    Decodes everything, not only the checked fields: skipped fields could carry broken UTF-8 and
    numbers out of range to the engine. A line that `has_few_values` is not nested too deeply.
    """
    try:
        value = _DECODE(line)
    except UnicodeDecodeError:
        return "This line is not valid UTF-8."
    except RecursionError:
        return _TOO_DEEP
    except msgspec.MsgspecError:
        if _has_lone_surrogate(line):
            return "This line has half of a surrogate pair, which is not valid text."
        return _NO_JSON
    if not isinstance(value, dict):
        return "This line is not a JSON object."
    if not has_few_values and len(line) > _SHALLOW_BYTES and _is_too_deep(line, value):
        return _TOO_DEEP
    return value


def _is_too_deep(line: bytes, value: dict[str, Any]) -> bool:
    """Whether objects and arrays are nested beyond the limit; most lines have fewer brackets.

    Counts bytes by the length that `replace` removes: several times as fast as `count`.
    """
    rest = line.replace(b"{", b"", NESTING_MAX + 1).replace(b"[", b"", NESTING_MAX + 1)
    if len(line) - len(rest) <= NESTING_MAX:
        return False
    level: list[Any] = [value]
    for _ in range(NESTING_MAX):
        inside = chain.from_iterable([o.values() if type(o) is dict else o for o in level])
        level = [inner for inner in inside if type(inner) is dict or type(inner) is list]
        if not level:
            return False
    return True


def _has_lone_surrogate(line: bytes) -> bool:
    """Whether an invalid line would be JSON except for a lone surrogate in one of its strings."""
    if b"\\ud" not in line.lower():
        return False
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        pass
    return False


def valid_custom_id(value: dict[str, Any]) -> str | None:
    """Return the `custom_id` of a line if it is valid: a bounded string that Postgres can store."""
    found = value.get("custom_id")
    if type(found) is str and found and len(found) <= CUSTOM_ID_CHARS_MAX and "\0" not in found:
        return found
    return None


def custom_id_error(value: dict[str, Any], line: int) -> LineError:
    """Return the error of a `custom_id` that is not valid."""
    found = value.get("custom_id")
    if error := _text_error(found, "custom_id", line):
        return error
    if isinstance(found, str) and "\0" in found:
        message = "'custom_id' must not contain a NUL character."
    elif found:
        message = f"'custom_id' must have at most {CUSTOM_ID_CHARS_MAX} characters."
    else:
        message = "'custom_id' must not be empty."
    return LineError(ErrorCode.INVALID_VALUE, message, "custom_id", line)


def request_error(value: dict[str, Any], endpoint: str, line: int) -> LineError | None:
    """Return the error of the method, the url or the structure of the body; None if valid."""
    body = value.get("body")
    if (
        value.get("method") == "POST"
        and value.get("url") == endpoint
        and type(body) is dict
        and type(body.get("model")) is str
    ):
        return None
    expected = (
        ("method", "POST", ErrorCode.INVALID_METHOD, "'method' must be POST."),
        ("url", endpoint, ErrorCode.URL_MISMATCH, "'url' must be the endpoint of the batch."),
    )
    for name, text, code, message in expected:
        if error := _text_error(value.get(name), name, line):
            return error
        if value[name] != text:
            return LineError(code, message, name, line)
    if body is None:
        return LineError(ErrorCode.MISSING, "'body' is required.", "body", line)
    if type(body) is not dict:
        return LineError(ErrorCode.INVALID_TYPE, "'body' must be a JSON object.", "body", line)
    return _text_error(body.get("model"), "body.model", line)


def line_limit_error(line: bytes, limits: BodyLimits, number: int) -> LineError | None:
    """Return the error of a line that holds too many values to decode it; None if it may be."""
    exceeded = find_exceeded_count(line, limits)
    if exceeded is None:
        return None
    try:
        _SKIP(line)
    except RecursionError:
        return LineError(ErrorCode.INVALID_JSON_LINE, _TOO_DEEP, None, number)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return LineError(ErrorCode.INVALID_JSON_LINE, _NO_JSON, None, number)
    return _limit_error(exceeded, number)


def body_limit_error(value: dict[str, Any], limits: BodyLimits, number: int) -> LineError | None:
    """Return the error of a line whose body exceeds a limit; None if it exceeds none."""
    exceeded = find_exceeded_field(value["body"], limits)
    return None if exceeded is None else _limit_error(exceeded, number)


def _limit_error(exceeded: ExceededLimit, number: int) -> LineError:
    param = "body" if exceeded.param is None else f"body.{exceeded.param}"
    return LineError(ErrorCode.INVALID_VALUE, exceeded.message, param, number)


def _text_error(found: object, param: str, line: int) -> LineError | None:
    if found is None:
        return LineError(ErrorCode.MISSING, f"'{param}' is required.", param, line)
    if not isinstance(found, str):
        return LineError(ErrorCode.INVALID_TYPE, f"'{param}' must be a string.", param, line)
    return None
