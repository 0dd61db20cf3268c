"""Goal: a result line equals that of its file plus its sequence, wherever its data is stored."""

import json
from typing import Any

import pytest

from core.object_names import job_key_name
from core.outcomes import Outcome
from results.finaliser.output_lines import LineTemplate
from results.views.item_custom_ids import ItemCustomIds, find_index
from results.views.sequenced_lines import SequencedLines, SequencedRow, jsonl, server_sent
from storage.crypto.body_ciphers import KEY_BYTES, BodyCipher, BodyDirection, CipherContext
from storage.objects.errors import ObjectNotFoundError
from tests.unit.results.views.stored import JOB_ID, MemoryObjects, row, source

CANCELLED = {
    "outcome": Outcome.CANCELLED.value,
    "status_code": 0,
    "custom_id": None,
    "error_code": "batch_cancelled",
    "body": None,
}


def inputs(*names: str, **more: Any) -> bytes:
    lines = [{"custom_id": n, "method": "POST", "url": "/v1/embeddings", "body": {}} for n in names]
    return b"".join(json.dumps(line, **more).encode() + b"\n" for line in lines)


def file_line(index: int, name: str, **fields: Any) -> bytes:
    return b"".join(LineTemplate(JOB_ID).line(row(index, **fields), name))


def test_lines_are_those_of_the_files_with_a_sequence() -> None:
    objects = MemoryObjects({"input": inputs("a", "b", "c")})
    lines = SequencedLines(objects.store, source(objects), jsonl)
    rows = [SequencedRow(1, row(2)), SequencedRow(2, row(0)), SequencedRow(3, row(1, **CANCELLED))]

    text = b"".join(lines.blocks(rows)).decode()

    assert lines.after == 3
    shown = [json.loads(line) for line in text.splitlines()]
    assert [line.pop("sequence") for line in shown] == [1, 2, 3]
    assert shown[0] == json.loads(file_line(2, "request-2"))
    assert shown[2] == json.loads(file_line(1, "b", **CANCELLED))


def test_events_are_one_line_each() -> None:
    objects = MemoryObjects({"input": b"", "large": b'{"a":\n1,\r\n"b":2}'})
    lines = SequencedLines(objects.store, source(objects), server_sent)
    rows = [
        SequencedRow(7, row(0, body=b'{\n"x":"y"\r}')),
        SequencedRow(8, row(1, body=None, body_key="large")),
    ]

    first, second, rest = b"".join(lines.blocks(rows)).split(b"\n\n")

    assert rest == b""
    for event, sequence in ((first, 7), (second, 8)):
        head, data = event.split(b"\n")
        assert head == b"id: %d" % sequence
        assert json.loads(data.removeprefix(b"data: "))["sequence"] == sequence


def test_moved_large_answer_is_read_from_its_file() -> None:
    large = row(1, body=None, body_key="answers/1")
    objects = MemoryObjects({"input": b"", "answers/1": b'"large"'})
    running = SequencedLines(objects.store, source(objects), jsonl)
    before = b"".join(running.blocks([SequencedRow(1, large)]))

    del objects.objects["answers/1"]
    with pytest.raises(ObjectNotFoundError):
        list(running.blocks([SequencedRow(2, large)]))
    assert running.after == 1

    objects.objects["out"] = file_line(0, "x") + file_line(1, "request-1", body=b'"large"')
    ended = source(objects, output="out", state="completed")
    moved = SequencedLines(objects.store, ended, jsonl)
    assert b"".join(moved.blocks([SequencedRow(1, large)])) == before


def test_destroyed_key_decrypts_no_further_page() -> None:
    secret, name = b"k" * KEY_BYTES, job_key_name(JOB_ID)
    objects = MemoryObjects({"input": inputs("a", "b"), name: secret})
    lines = SequencedLines(objects.store, source(objects, zero_retention=True), jsonl)
    cipher = BodyCipher(secret)
    contexts = [CipherContext(JOB_ID, BodyDirection.OUT, n) for n in range(2)]
    bodies = [cipher.encrypt(b'"x"', context) for context in contexts]
    rows = [row(n, custom_id=None, body=body) for n, body in enumerate(bodies)]

    (first,) = map(json.loads, lines.blocks([SequencedRow(1, rows[0])]))
    del objects.objects[name]
    (second,) = map(json.loads, lines.blocks([SequencedRow(2, rows[1])]))

    assert first["response"]["body"] == "x"
    assert (second["custom_id"], second["error"]["code"]) == ("b", "key_gone")


def test_answer_in_a_deleted_file_is_an_error() -> None:
    objects = MemoryObjects({"input": b""})
    large = row(1, body=None, body_key="answers/1")
    for output in (None, "out"):
        ended = source(objects, output=output, state="completed")
        lines = SequencedLines(objects.store, ended, jsonl)
        shown = json.loads(b"".join(lines.blocks([SequencedRow(4, large)])))
        assert shown["error"]["code"] == "answer_gone"
        assert shown["response"]["body"] is None
        assert (shown["response"]["status_code"], shown["sequence"]) == (200, 4)


def test_custom_ids_come_from_the_input_until_the_error_file_exists() -> None:
    objects = MemoryObjects({"input": inputs("a", "b", "c"), "input-2": inputs("d", "e")})
    names = ItemCustomIds(objects.store, source(objects))
    assert [names.at(index) for index in (0, 2, 3, 4, 1)] == ["a", "c", "d", "e", "b"]

    objects.objects |= {"err": file_line(3, "from file", **CANCELLED)}
    ended = ItemCustomIds(objects.store, source(objects, error="err", state="cancelled"))
    without_files = ItemCustomIds(objects.store, source(objects, state="cancelled"))
    del objects.objects["input"]
    assert (ended.at(3), ended.at(4)) == ("from file", None)
    assert without_files.at(0) is None


@pytest.mark.parametrize("more", [{}, {"ensure_ascii": False}])
@pytest.mark.parametrize("name", ["b", "näme", 'qu"ote', "a/b", "\\u0062"])
def test_item_is_found_by_its_custom_id(name: str, more: dict[str, bool]) -> None:
    objects = MemoryObjects({"input": inputs("x", "\\b", **more) + b"\n\n" + inputs(name, **more)})

    assert find_index(objects.store, source(objects), name) == 2
    assert find_index(objects.store, source(objects), "nobody") is None


def test_item_is_found_in_result_files_without_the_input() -> None:
    objects = MemoryObjects({"out": file_line(0, "a"), "err": file_line(1, "näme", **CANCELLED)})
    ended = source(objects, output="out", error="err", state="cancelled")

    found = [find_index(objects.store, ended, name) for name in ("näme", "a", "b")]
    assert found == [1, 0, None]
