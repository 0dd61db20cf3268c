"""Goal: every stage reads the last value of a repeated key, as validation does."""

from datetime import UTC, datetime

import pytest

from jobs.expansion.emission import parse_item
from jobs.input.input_files import InputFile
from jobs.input.line_reader import InputChangedError, custom_id_of, input_lines
from jobs.store.copies import Copy, find_copies
from jobs.validation.file_validation import validate_file
from registry.models import ModelVersion
from results.finaliser.input_custom_ids import read_custom_id

ENDPOINT = "/v1/embeddings"
MODEL = ModelVersion("m", "1", "pool", "simulated", (ENDPOINT,), datetime(2026, 1, 1, tzinfo=UTC))
BODY = b'{"model":"m","input":"text"}'
HEAD = b'"method":"POST","url":"/v1/embeddings",'
REPEATED = {
    "null, then an id": b'{"custom_id":null,"custom_id":"a",%b"body":%b}' % (HEAD, BODY),
    "a number, then an id": b'{"custom_id":5,%b"body":%b,"custom_id":"a"}' % (HEAD, BODY),
    "an object, then an id": b'{"custom_id":{"b":[]},%b"custom_id":"a","body":%b}' % (HEAD, BODY),
    "another id": b'{"custom_id":"b","custom_id":"a",%b"body":%b}' % (HEAD, BODY),
    "an escaped key": b'{"custom_id":1,"custom\\u005fid":"a",%b"body":%b}' % (HEAD, BODY),
    "a number, then a body": b'{"custom_id":"a",%b"body":5,"body":%b}' % (HEAD, BODY),
    "a list, then a body": b'{"body":[1],"custom_id":"a",%b"body":%b}' % (HEAD, BODY),
    "another body": b'{"body":{"model":"x"},"custom_id":"a",%b"body":%b}' % (HEAD, BODY),
}


@pytest.fixture(params=REPEATED.values(), ids=[*REPEATED])
def line(request: pytest.FixtureRequest) -> bytes:
    found: bytes = request.param
    return found


def test_validation_reads_the_last_value(line: bytes) -> None:
    result = validate_file(
        lambda: [(1, 0, line)],
        endpoint=ENDPOINT,
        items_max=9,
        line_bytes_max=1000,
        find_model={"m": MODEL}.get,
    )
    assert (result.item_count, result.errors) == (1, ())


def test_expansion_reads_the_last_value(line: bytes) -> None:
    item = parse_item(3, 40, line, ENDPOINT)
    assert (item.custom_id, item.body) == ("a", BODY)


def test_copies_and_their_ids_use_the_last_value(line: bytes) -> None:
    data = b"%b\n%b" % (line, line)
    found = find_copies([InputFile("in", 0)], lambda _: input_lines([data], line_bytes_max=1000))
    assert list(found) == [Copy(1, 0, "a")]


def test_custom_ids_use_the_last_value(line: bytes) -> None:
    assert custom_id_of(line) == read_custom_id(line) == "a"


@pytest.mark.parametrize("custom_id", [b"null", b"5", b'{"a":1}'])
def test_an_id_that_is_not_a_string_was_never_valid(custom_id: bytes) -> None:
    with pytest.raises(InputChangedError):
        parse_item(0, 0, b'{"custom_id":%b,"body":{}}' % custom_id, ENDPOINT)
