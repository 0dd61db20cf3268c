"""Validates an input file in one pass, with 8 bytes of memory per item, and 12 more of prompts.

A file with repeated ids is read a second time, to find their lines; it needs about a hundred bytes
for each id that occurs more than once. So is a valid file whose prompts may share prefixes, with 36
bytes per item.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.bodies.body_limits import has_few_values
from core.limits import ERROR_LINES_MAX
from jobs.input.line_checks import (
    ErrorCode,
    LineError,
    body_limit_error,
    custom_id_error,
    line_limit_error,
    parse_line,
    request_error,
    valid_custom_id,
)
from jobs.input.line_reader import InputChangedError, Line
from jobs.input.token_sums import Tokens, TokenSums
from jobs.ordering.item_order import ItemOrder
from jobs.ordering.prompt_prefixes import ORDERED_ENDPOINTS, FirstPrefixes, PromptPrefixes
from jobs.validation.model_rule import FindModel, ModelRule, PinnedModels
from registry.model_version import ModelVersion

ReadIds: TypeAlias = Callable[[], Iterable[str]]
"""Reads the ids of the existing items of a job; called once or twice."""

ReadLines: TypeAlias = Callable[[], Iterable[Line]]
"""Opens the file at its start; called once, or twice, see above."""

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ExistingItems:
    """The items of a job to which a file is appended."""

    models: PinnedModels
    item_count: int
    read_ids: ReadIds


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of a validation. The file is accepted exactly if `error_count` is 0."""

    item_count: int
    model: ModelVersion | None
    errors: tuple[LineError, ...] = ()  # the first ones, in line order
    error_count: int = 0
    is_expected_late: bool = False  # accepted, although the deadline is not expected to be met
    assessed_deadline: datetime | None = None  # that the job cannot meet; None: no such estimate
    order: ItemOrder | None = field(default=None, compare=False)  # None: that of the file
    names: Mapping[str, ModelVersion] = field(default_factory=dict, compare=False)
    """The new model names, in the order of their first lines; `model` is that of the first."""

    tokens: Tokens = field(default=Tokens(), compare=False)  # of the valid items, estimated


def validate_file(  # noqa: PLR0913  the limits are settings of the caller
    read_lines: ReadLines,
    *,
    endpoint: str,
    items_max: int,
    line_bytes_max: int,
    find_model: FindModel,
    existing: ExistingItems | None = None,
    body_limits: BodyLimits = DEFAULT_BODY_LIMITS,
    orders_items: bool = False,
    allows_several_models: bool = True,
) -> ValidationResult:
    """Check every line of a file; stop early only at `items_max` items of its job.

    `line_bytes_max` is the limit of `read_lines`, for error messages. An appended file may name
    what fits the models of the `existing` items, and none of their ids. All errors are counted and
    the first ones kept. `orders_items`: find an order by shared prefixes. Raises errors of reading.
    """
    prefixes = FirstPrefixes() if orders_items and endpoint in ORDERED_ENDPOINTS else None
    findings = _Findings()
    pinned = existing.models if existing else None
    model = ModelRule(endpoint, find_model, pinned, allows_several=allows_several_models)
    tokens = TokenSums(endpoint)
    last_name, salt, count = None, 0, 0
    hashes = array("q")
    count_max = items_max - (existing.item_count if existing else 0)  # below 0: it was lowered
    for number, _, line in read_lines():
        if count >= count_max:
            message = f"A batch may have at most {items_max} requests."
            findings.add(LineError(ErrorCode.TOO_MANY_TASKS, message))
            return findings.result(count, None)
        count += 1
        if line is None:
            message = f"This line has more than {line_bytes_max} bytes."
            findings.add(LineError(ErrorCode.LINE_TOO_LONG, message, None, number))
            continue
        is_plain = has_few_values(line)
        if not is_plain and (error := line_limit_error(line, body_limits, number)):
            findings.add(error)
            continue
        value = parse_line(line, has_few_values=is_plain)
        if isinstance(value, str):
            findings.add(LineError(ErrorCode.INVALID_JSON_LINE, value, None, number))
            continue
        custom_id = valid_custom_id(value)
        if custom_id is None:
            findings.add(custom_id_error(value, number))
        else:
            hashes.append(hash(custom_id))  # keyed per process (PEP 456)
        error = request_error(value, endpoint, number)
        if error is None and not is_plain:
            error = body_limit_error(value, body_limits, number)
        if error is None and value["body"]["model"] != last_name:
            last_name = value["body"]["model"]
            error, salt = model.error(last_name, number), model.prefix_salt(last_name)
            last_name = None if error else last_name
        if error:
            findings.add(error)
            continue
        tokens.add(len(line), value["body"])
        if prefixes is not None:
            prefixes.add(len(line), value["body"], salt)
    if not count:
        findings.add(LineError(ErrorCode.EMPTY_FILE, "The file has no requests."))
    findings.merge(_repeated_ids(read_lines, hashes, existing))
    result = findings.result(count, model.version)
    result = replace(result, names=model.names, tokens=tokens.total)
    if prefixes is None or result.error_count or not prefixes.may_share():
        return result
    return replace(result, order=_find_order(read_lines(), model))


def _find_order(lines: Iterable[Line], model: ModelRule) -> ItemOrder | None:
    """Return the order of the items of a valid file."""
    prefixes = PromptPrefixes()
    for index, (_, _, line) in enumerate(lines):
        value = parse_line(line) if line is not None else ""
        if not isinstance(value, dict):
            raise InputChangedError(index=index)
        body = value["body"]
        prefixes.add(len(line or b""), body, model.prefix_salt(body["model"]))
    return prefixes.find_order()


class _Findings:
    """Errors of a file: all are counted, the first ones in line order are kept."""

    def __init__(self) -> None:
        self._first: list[LineError] = []
        self._count = 0

    def add(self, error: LineError) -> None:
        """Add an error; errors come in line order."""
        self._count += 1
        if len(self._first) < ERROR_LINES_MAX:
            self._first.append(error)

    def merge(self, errors: Iterable[LineError]) -> None:
        """Merge the errors of a second pass, which are in line order, into those of the first."""
        first: list[LineError] = []
        for error in errors:  # up to one per line: never keep all of them
            self._count += 1
            if len(first) < ERROR_LINES_MAX:
                first.append(error)
        merged = sorted([*self._first, *first], key=lambda error: error.line or 0)
        self._first = merged[:ERROR_LINES_MAX]

    def result(self, count: int, model: ModelVersion | None) -> ValidationResult:
        return ValidationResult(count, model, tuple(self._first), self._count)


def _repeated_ids(
    read_lines: ReadLines, hashes: "array[int]", existing: ExistingItems | None
) -> Iterable[LineError]:
    """Return the errors of ids that occur more than once, which a second pass finds."""
    if existing is not None:
        hashes.extend(map(hash, existing.read_ids()))
    repeated = repeated_hashes(hashes)
    if not repeated:
        return ()
    seen = _digests(existing.read_ids(), repeated) if existing else set()
    return _duplicates(read_lines(), repeated, seen)


def repeated_hashes(hashes: "array[int]") -> frozenset[int]:
    """Return the values that occur more than once. Sorts `hashes` in place."""
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
    """Yield an error for every later line of an id. Equal hashes of different ids are no error."""
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
