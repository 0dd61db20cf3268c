"""Goal: accepted items can be stored, executed and identified; errors are reported by line."""

import json
import pickle
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import WeakSet

import pytest

from core.bodies.body_limit_settings import BodyLimits
from core.limits import ERROR_LINES_MAX
from jobs.input.line_checks import NESTING_MAX, ErrorCode, LineError
from jobs.input.line_reader import input_lines
from jobs.validation.file_validation import ExistingItems, ValidationResult, validate_file
from jobs.validation.model_rule import PinnedModels
from registry.models import ModelVersion

ENDPOINT = "/v1/embeddings"
SMALL = ModelVersion(
    "small", "1", "pool", "simulated", (ENDPOINT,), datetime(2026, 1, 1, tzinfo=UTC)
)
CHAT = ModelVersion(
    "chat", "1", "pool", "simulated", ("/v1/chat/completions",), datetime(2026, 1, 1, tzinfo=UTC)
)
OTHER = replace(SMALL, name="other", version="2")
PINNED = PinnedModels({"small": "1"}, "pool", "1")
SECRET = "the patient said"


def line(custom_id: object = "a", **fields: Any) -> bytes:
    body = {"model": "small", "input": SECRET}
    value = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body} | fields
    return json.dumps({name: v for name, v in value.items() if v is not ...}).encode()


def with_input(raw: bytes) -> bytes:
    """A line whose input is `raw` JSON, valid or not."""
    return line().replace(b'"' + SECRET.encode() + b'"', raw)


LONG_LINE = with_input(b'"%s"' % (b"x" * 500))


def validated(*lines: bytes, line_bytes_max: int = 2**20, **given: Any) -> ValidationResult:
    data = b"\n".join(lines)
    models = {"small": SMALL, "chat": CHAT, "other": OTHER}
    defaults: dict[str, Any] = {
        "items_max": 1000,
        "find_model": models.get,
        "endpoint": ENDPOINT,
    }
    return validate_file(
        lambda: input_lines([data], line_bytes_max=line_bytes_max),
        line_bytes_max=line_bytes_max,
        **(defaults | given),
    )


def only_error(found: ValidationResult) -> LineError:
    assert found.error_count == 1
    (error,) = found.errors
    assert SECRET not in error.message
    return error


def test_a_valid_file() -> None:
    assert validated(line("a"), b"", line("b")) == ValidationResult(2, SMALL)


HOSTILE = {
    "invalid UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\x80"',
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'"\\udc00"',
    "raw NUL": b'"\x00"',
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "1e400": b"1e400",
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
    "trailing comma": b"[1,]",
    "single quotes": b"'a'",
    "a second value": b'"a"}} {"b": {"c": 1',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_invalid_json_is_rejected_with_its_line(raw: bytes) -> None:
    error = only_error(validated(line("first"), with_input(raw), line("last")))
    assert (error.code, error.param, error.line) == (ErrorCode.INVALID_JSON_LINE, None, 2)


DEPTH_MAX = NESTING_MAX - 2  # the line and its body are two levels


@pytest.mark.parametrize(
    ("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}"), (b"[ ", b"\t]"), (b'{"b":0,"a":', b"}")]
)
def test_nesting_is_limited_independently_of_the_stack(opened: bytes, closed: bytes) -> None:
    def nested(depth: int) -> bytes:
        return with_input(opened * depth + b"0" + closed * depth)

    assert validated(nested(DEPTH_MAX)).error_count == 0
    for depth in (DEPTH_MAX + 1, 500, 20_000):
        error = only_error(validated(line("first"), nested(depth), line("last")))
        assert (error.code, error.line) == (ErrorCode.INVALID_JSON_LINE, 2)
        assert error.message == "This line is nested deeper than 128 levels."


@pytest.mark.parametrize(
    ("raw", "is_half"),
    [
        (b'"\\ud800"', True),
        (b'"\\uDC00"', True),
        (b'["\\ud83d\\ude00", "\\ud800x"]', True),
        (b'"\\ud800" "', False),
        (b'["\\ud83d\\ude00", NaN]', False),
        (b'"\\\\ud800" x', False),
    ],
)
def test_a_lone_surrogate_has_its_own_message(raw: bytes, *, is_half: bool) -> None:
    message = only_error(validated(with_input(raw))).message
    assert ("half of a surrogate pair" in message) is is_half


HARMLESS = {
    "escaped NUL in a body": with_input(b'"\\u0000"'),
    "30 digits": with_input(b"9" * 30),
    "a surrogate pair": with_input(b'"\\ud83d\\ude00"'),
    "many brackets": with_input(b"[" + b",".join([b'[{"a": []}]'] * 1000) + b"]"),
    "brackets in a string": line(text="[" * 1000),
    "a byte order mark and a carriage return": b"\xef\xbb\xbf" + line() + b"\r",
    "the longest custom_id": line("x" * 512),
}


@pytest.mark.parametrize("unusual", HARMLESS.values(), ids=HARMLESS)
def test_unusual_lines_are_accepted(unusual: bytes) -> None:
    assert validated(unusual, line("other")).error_count == 0


def test_the_last_of_repeated_keys_wins() -> None:
    repeated = line("a")[:-1] + b', "custom_id": "b", "method": "POST"}'
    assert validated(repeated, line("a")).error_count == 0
    assert only_error(validated(repeated, line("b"))).code is ErrorCode.DUPLICATE_CUSTOM_ID


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (line(...), ErrorCode.MISSING, "custom_id"),
        (line(None), ErrorCode.MISSING, "custom_id"),
        (line(5), ErrorCode.INVALID_TYPE, "custom_id"),
        (line(""), ErrorCode.INVALID_VALUE, "custom_id"),
        (line("a\0b"), ErrorCode.INVALID_VALUE, "custom_id"),
        (line("x" * 513), ErrorCode.INVALID_VALUE, "custom_id"),
        (line(method=...), ErrorCode.MISSING, "method"),
        (line(method=["POST"]), ErrorCode.INVALID_TYPE, "method"),
        (line(method="GET"), ErrorCode.INVALID_METHOD, "method"),
        (line(url=...), ErrorCode.MISSING, "url"),
        (line(url=1), ErrorCode.INVALID_TYPE, "url"),
        (line(url="/v1/completions"), ErrorCode.URL_MISMATCH, "url"),
        (line(body=...), ErrorCode.MISSING, "body"),
        (line(body="{}"), ErrorCode.INVALID_TYPE, "body"),
        (line(body={}), ErrorCode.MISSING, "body.model"),
        (line(body={"model": 1}), ErrorCode.INVALID_TYPE, "body.model"),
        (line(body={"model": "absent"}), ErrorCode.MODEL_NOT_FOUND, "body.model"),
        (line(body={"model": "chat"}), ErrorCode.ENDPOINT_NOT_SUPPORTED, "body.model"),
        (b"[]", ErrorCode.INVALID_JSON_LINE, None),
        (b"null", ErrorCode.INVALID_JSON_LINE, None),
        (b"not json", ErrorCode.INVALID_JSON_LINE, None),
    ],
)
def test_an_invalid_line_is_reported_with_code_and_param(
    bad: bytes, code: ErrorCode, param: str | None
) -> None:
    error = only_error(validated(bad))
    assert (error.code, error.param, error.line) == (code, param, 1)


def test_an_unknown_first_model_does_not_invalidate_other_lines() -> None:
    mistake = line("a", body={"model": "smal"})
    found = validated(mistake, line("b"), line("c"), mistake.replace(b'"a"', b'"d"'))
    assert [(e.line, e.code) for e in found.errors] == [
        (1, ErrorCode.MODEL_NOT_FOUND),
        (4, ErrorCode.MODEL_NOT_FOUND),
    ]


def test_unknown_models_are_looked_up_once_and_up_to_a_limit() -> None:
    names = [f"m{n % 500}" for n in range(1000)]
    lines = [line(f"{n}", body={"model": name}) for n, name in enumerate(names)]
    lookups: list[str] = []
    found = validated(*lines, find_model=lookups.append)
    assert lookups == names[:100]
    assert found.error_count == 1000
    assert {error.code for error in found.errors} == {ErrorCode.MODEL_NOT_FOUND}


@pytest.mark.parametrize(
    ("item_count", "is_refused"), [(7, False), (8, True), (10, True), (12, True)]
)
def test_items_of_earlier_files_count_against_the_limit(item_count: int, is_refused: bool) -> None:
    existing = ExistingItems(PINNED, item_count, list)
    found = validated(*map(line, "abc"), items_max=10, existing=existing)
    assert found.error_count == is_refused
    if is_refused:
        error = only_error(found)
        assert error.code is ErrorCode.TOO_MANY_TASKS
        assert error.message == "A batch may have at most 10 requests."


@pytest.mark.parametrize(
    ("lines", "limits", "code", "number"),
    [
        ([b"", b" ", b""], {}, ErrorCode.EMPTY_FILE, None),
        (
            [line("a"), line("b"), b"junk", b"junk"],
            {"items_max": 2},
            ErrorCode.TOO_MANY_TASKS,
            None,
        ),
        (
            [line("a"), line("b", body={"model": "other"}), line("c")],
            {},
            ErrorCode.MODEL_MISMATCH,
            2,
        ),
        ([line("a"), LONG_LINE], {"line_bytes_max": 400}, ErrorCode.LINE_TOO_LONG, 2),
    ],
)
def test_a_file_beyond_a_limit_has_one_error(
    lines: list[bytes], limits: dict[str, int], code: ErrorCode, number: int | None
) -> None:
    error = only_error(validated(*lines, **limits))
    assert (error.code, error.line) == (code, number)
    if code is ErrorCode.LINE_TOO_LONG:
        assert error.message == "This line has more than 400 bytes."


def test_a_file_with_exactly_its_maximum_of_requests_is_valid() -> None:
    assert validated(line("a"), line("b"), items_max=2).error_count == 0


def test_duplicate_ids_are_reported_in_line_order_with_other_errors() -> None:
    found = validated(line("a"), b"junk", line("b"), line("a"), b"junk", line("a"), line("b"))
    duplicate, junk = ErrorCode.DUPLICATE_CUSTOM_ID, ErrorCode.INVALID_JSON_LINE
    assert [(e.line, e.code) for e in found.errors] == [
        (2, junk),
        (4, duplicate),
        (5, junk),
        (6, duplicate),
        (7, duplicate),
    ]
    assert found.error_count == 5


def test_the_first_hundred_errors_are_kept_and_all_are_counted() -> None:
    found = validated(*[b"junk"] * 150, line("a"), *[line("a")] * 50)
    assert (found.error_count, found.item_count) == (200, 201)
    assert [e.line for e in found.errors] == list(range(1, 101))


def test_duplicate_id_errors_are_counted_without_keeping_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class TrackedError(LineError):
        __slots__ = ("__weakref__",)

    alive: WeakSet[LineError] = WeakSet()
    counts: list[int] = []

    def track(*given: Any) -> LineError:
        error = TrackedError(*given)
        alive.add(error)
        counts.append(len(alive))
        return error

    monkeypatch.setattr("jobs.validation.file_validation.LineError", track)
    found = validated(*[line("a")] * 1000)
    assert (found.error_count, len(found.errors)) == (999, ERROR_LINES_MAX)
    assert max(counts) < 2 * ERROR_LINES_MAX


def test_equal_hashes_of_different_ids_are_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.validation.file_validation.hash", lambda _: 7, raising=False)
    assert validated(line("a"), line("b")).error_count == 0
    assert validated(line("a"), line("b"), line("a")).error_count == 1


def test_errors_are_encoded_as_clients_expect() -> None:
    error = only_error(validated(b"junk"))
    assert error.as_json() == {
        "code": "invalid_json_line",
        "message": "This line is not parseable as valid JSON.",
        "param": None,
        "line": 1,
    }


def peak_bytes(blocks: Iterable[bytes], expected: list[tuple[ErrorCode, int | None]]) -> int:
    """Validate a file with these errors; return the peak of the memory that it needs."""
    tracemalloc.start()
    try:
        found = validate_file(
            lambda: input_lines(blocks, line_bytes_max=2**20),
            endpoint=ENDPOINT,
            items_max=10**6,
            line_bytes_max=2**20,
            find_model={"small": SMALL}.get,
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(error.code, error.line) for error in found.errors] == expected
    return peak


def test_a_line_of_200_mb_is_rejected_in_constant_memory() -> None:
    def blocks(count: int) -> Iterator[bytes]:
        yield line()[:-3]
        for _ in range(count):
            yield b"x" * 65_536
        yield b'"}}\n' + line("b")

    assert peak_bytes(blocks(3200), [(ErrorCode.LINE_TOO_LONG, 1)]) < 4 * 2**20


def test_an_item_needs_few_bytes_of_memory() -> None:
    def peak(count: int) -> int:
        template = line("?") + b"\n"
        return peak_bytes((template.replace(b"?", b"%d" % n) for n in range(count)), [])

    peak(10)  # loads what validation imports when it is first used
    assert peak(10_000) < 10_000 * 32


def test_a_line_with_a_body_beyond_the_limits_is_named() -> None:
    hostile = with_input(json.dumps(["a"] * 3_000).encode())
    error = only_error(validated(line("first"), hostile))
    assert (error.code, error.line, error.param) == (ErrorCode.INVALID_VALUE, 2, "body.input")
    assert error.message == "'input' must have at most 2048 elements."
    assert not validated(hostile, body_limits=BodyLimits(inputs_max=3_000)).error_count


def test_a_line_of_too_many_values_is_not_decoded() -> None:
    hostile = with_input(b"[%b{}]" % (b"{}," * 100_000))
    tracemalloc.start()
    error = only_error(validated(hostile))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (error.code, error.line, error.param) == (ErrorCode.INVALID_VALUE, 1, "body.input")
    assert peak < 5_000_000


def chat_lines(count: int) -> list[bytes]:
    """Lines of which every third has the same long start."""
    return [
        line(
            f"id-{n}",
            url="/v1/chat/completions",
            body={
                "model": "chat",
                "messages": [{"role": "system", "content": f"{n % 3}" * 2000}],
            },
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("lines", "is_on", "is_found"),
    [
        (chat_lines(300), True, True),
        (chat_lines(300), False, False),
        (chat_lines(150), True, False),
        ([*chat_lines(300), b"junk"], True, False),
        ([*chat_lines(300), chat_lines(1)[0]], True, False),
    ],
    ids=["found", "off", "small", "invalid", "repeated id"],
)
def test_only_a_valid_file_has_an_order(lines: list[bytes], is_on: bool, is_found: bool) -> None:
    found = validated(*lines, endpoint="/v1/chat/completions", orders_items=is_on)
    assert (found.order is not None) == is_found
    if found.order is not None:
        assert [n % 3 for n in found.order.sequence().tolist()] == sorted(n % 3 for n in range(300))
        again = pickle.loads(pickle.dumps(found))
        assert again.order.positions.tolist() == found.order.positions.tolist()
