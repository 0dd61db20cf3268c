"""The pass over an input file that decides whether its job may run. One read, constant memory
beside 8 bytes an item; only a file with repeated ids is read a second time, to name its lines, and
takes some hundred bytes for each id that occurs more than once.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np

from core.limits import ERROR_LINES_MAX
from jobs.input.line_checks import (
    ErrorCode,
    LineError,
    custom_id_error,
    parse_line,
    request_error,
    valid_custom_id,
)
from jobs.input.line_reader import Line
from registry.models import ModelVersion

FindModel: TypeAlias = Callable[[str], ModelVersion | None]
"""The newest version of a model by the name that a client uses."""

ReadIds: TypeAlias = Callable[[], Iterable[str]]
"""Reads the ids of items that a job has already; called once or twice."""

ReadLines: TypeAlias = Callable[[], Iterable[Line]]
"""Opens the file at its beginning; called once, or twice for a file with repeated ids."""

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ExistingItems:
    """What a job has already, when another file is appended to it."""

    model_name: str
    item_count: int
    read_ids: ReadIds


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What validation found. The job may run exactly when `error_count` is 0."""

    item_count: int
    model: ModelVersion | None
    errors: tuple[LineError, ...] = ()  # the first of them, in line order
    error_count: int = 0


def rejected_file(error: LineError) -> ValidationResult:
    """Return the verdict on a file that cannot be read at all."""
    return ValidationResult(0, None, (error,), 1)


def validate_file(
    read_lines: ReadLines,
    *,
    endpoint: str,
    items_max: int,
    line_bytes_max: int,
    find_model: FindModel,
    earlier: ExistingItems | None = None,
) -> ValidationResult:
    """Check every line of a file; stops early only when its job has `items_max` items.

    `line_bytes_max` is what `read_lines` went by, told to those whose lines are longer.
    A file that is appended names the model of the `earlier` ones, and none of their ids. Counts
    every error and keeps the first. Raises what reading raises.
    """
    findings = _Findings()
    model = _ModelRule(endpoint, find_model, name=earlier.model_name if earlier else None)
    hashes = array("q")
    count = 0
    room = items_max - (earlier.item_count if earlier else 0)  # below 0 after the limit was lowered
    for number, _, line in read_lines():
        if count >= room:
            message = f"A batch may have at most {items_max} requests."
            findings.add(LineError(ErrorCode.TOO_MANY_TASKS, message))
            return findings.verdict(count, None)
        count += 1
        if line is None:
            message = f"This line has more than {line_bytes_max} bytes."
            findings.add(LineError(ErrorCode.LINE_TOO_LONG, message, None, number))
            continue
        value = parse_line(line)
        if isinstance(value, str):
            findings.add(LineError(ErrorCode.INVALID_JSON_LINE, value, None, number))
            continue
        custom_id = valid_custom_id(value)
        if custom_id is None:
            findings.add(custom_id_error(value, number))
        else:
            hashes.append(hash(custom_id))  # keyed anew in each process (PEP 456)
        error = request_error(value, endpoint, number)
        if error is None and value["body"]["model"] != model.name:
            error = model.error(value["body"]["model"], number)
        if error:
            findings.add(error)
    if not count:
        findings.add(LineError(ErrorCode.EMPTY_FILE, "The file has no requests."))
    if earlier is not None:
        hashes.extend(map(hash, earlier.read_ids()))
    if repeated := repeated_hashes(hashes):
        seen = _digests(earlier.read_ids(), repeated) if earlier else set()
        findings.merge(_duplicates(read_lines(), repeated, seen))
    return findings.verdict(count, model.version)


class _Findings:
    """Errors found: all are counted, the first by line are kept."""

    def __init__(self) -> None:
        self._first: list[LineError] = []
        self._count = 0

    def add(self, error: LineError) -> None:
        """Errors are added in line order."""
        self._count += 1
        if len(self._first) < ERROR_LINES_MAX:
            self._first.append(error)

    def merge(self, errors: Iterable[LineError]) -> None:
        """Put errors of a later pass, in line order too, among those of the first."""
        first: list[LineError] = []
        for error in errors:  # may be one a line: never hold them all
            self._count += 1
            if len(first) < ERROR_LINES_MAX:
                first.append(error)
        merged = sorted([*self._first, *first], key=lambda error: error.line or 0)
        self._first = merged[:ERROR_LINES_MAX]

    def verdict(self, count: int, model: ModelVersion | None) -> ValidationResult:
        return ValidationResult(count, model, tuple(self._first), self._count)


class _ModelRule:
    """All lines of a job name one model, known, that serves the job's endpoint."""

    def __init__(self, endpoint: str, find_model: FindModel, *, name: str | None) -> None:
        self._endpoint = endpoint
        self._find_model = find_model
        self.name = name
        self.version: ModelVersion | None = None
        self._unknown: set[str] = set()

    def error(self, name: str, line: int) -> LineError | None:
        """Judge a name that differs from the one that lines before it share.

        A name that no model has is not shared: a slip in one line is no mistake of the others.
        """
        if self.name is not None:
            message = "All requests of a batch must name the same model."
            return LineError(ErrorCode.MODEL_MISMATCH, message, "body.model", line)
        self.version = self._find(name)
        if self.version is None:
            message = "The model does not exist."
            return LineError(ErrorCode.MODEL_NOT_FOUND, message, "body.model", line)
        self.name = name
        if self._endpoint not in self.version.endpoints:
            message = "The model does not serve the endpoint of the batch."
            return LineError(ErrorCode.ENDPOINT_NOT_SUPPORTED, message, "body.model", line)
        return None

    def _find(self, name: str) -> ModelVersion | None:
        """Look a name up, once. Behind as many unknown ones as errors are kept, none is told."""
        if name in self._unknown or len(self._unknown) >= ERROR_LINES_MAX:
            return None
        version = self._find_model(name)
        if version is None:
            self._unknown.add(name)
        return version


def repeated_hashes(hashes: "array[int]") -> frozenset[int]:
    """Return the values that occur more than once. Sorts `hashes` where they lie."""
    if not hashes:
        return frozenset()
    sorted_hashes = np.frombuffer(hashes, dtype=np.int64)
    sorted_hashes.sort()
    repeats = sorted_hashes[1:][sorted_hashes[1:] == sorted_hashes[:-1]]
    return frozenset(np.unique(repeats).tolist())


def _digests(custom_ids: Iterable[str], repeated: frozenset[int]) -> set[bytes]:
    return {_digest(custom_id) for custom_id in custom_ids if hash(custom_id) in repeated}


def _duplicates(
    lines: Iterable[Line], repeated: frozenset[int], seen: set[bytes]
) -> Iterable[LineError]:
    """Name the later lines of each id. Equal hashes of different ids are no error."""
    message = "'custom_id' was used by an earlier line."
    for number, _, line in lines:
        value = parse_line(line) if line is not None else ""
        custom_id = valid_custom_id(value) if isinstance(value, dict) else None
        if custom_id is None or hash(custom_id) not in repeated:
            continue
        digest = _digest(custom_id)
        if digest in seen:
            yield LineError(ErrorCode.DUPLICATE_CUSTOM_ID, message, "custom_id", number)
        seen.add(digest)


def _digest(custom_id: str) -> bytes:
    return blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
