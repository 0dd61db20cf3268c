"""Headers of weights are read without data, and refused if they contradict themselves."""

import io
from typing import Any

import pytest

from registry.memory_plan.safetensors_header import (
    HEADER_BYTES_MAX,
    InvalidWeightsError,
    Tensor,
    read_header,
)
from tests.support.weight_files import entry, header_bytes


def _read(data: bytes) -> list[Tensor]:
    return read_header(io.BytesIO(data), len(data))


def test_tensors_come_in_the_order_of_their_data() -> None:
    data = header_bytes(
        {
            "__metadata__": {"format": "pt"},
            "b": entry("F32", [2], 8, 16),
            "a": entry("BF16", [2, 2], 0, 8),
            "empty": entry("F32", [0, 3], 16, 16),
        },
        16,
    )
    assert [(one.name, one.stored_bytes) for one in _read(data)] == [
        ("a", 8),
        ("b", 8),
        ("empty", 0),
    ]


def test_no_data_are_read() -> None:
    data = header_bytes({"a": entry("F32", [1000], 0, 4000)}, 4000)
    file = io.BytesIO(data)
    read_header(file, len(data))
    assert file.tell() == len(data) - 4000


@pytest.mark.parametrize(
    ("entries", "data_bytes", "words"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "overlaps"),
        ({"a": entry("F32", [2], 4, 12)}, 12, "gap"),
        ({"a": entry("F32", [2], 0, 8)}, 12, "take 8 bytes; the file has 12"),
        ({"a": entry("F32", [3], 0, 8)}, 8, "has 8 bytes"),
        ({"a": entry("F32", [2], 8, 0)}, 8, "gap"),
        ({"a": entry("F32", [-1, -2], 0, 8)}, 8, "shape"),
        ({"a": entry("F32", [1] * 17, 0, 4)}, 4, "shape"),
        ({"a": entry("Q9", [2], 0, 8)}, 8, "unknown type 'Q9'"),
        ({"a": {"dtype": "F32"}}, 0, "not valid"),
        ({"a": entry("F32", [2], 0, 8), "__metadata__": 3}, 8, "not valid"),
        ({"a": entry("F32", [2**62, 4], 0, 8)}, 8, "has 8 bytes"),
    ],
)
def test_a_header_that_contradicts_the_file_is_refused(
    entries: dict[str, Any], data_bytes: int, words: str
) -> None:
    with pytest.raises(InvalidWeightsError, match=words):
        _read(header_bytes(entries, data_bytes))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends within"),
        (b"\x08\x00\x00", "ends within"),
        ((1000).to_bytes(8, "little") + b"{}", "longer than the file"),
        ((HEADER_BYTES_MAX + 1).to_bytes(8, "little") + b"{}", "more than"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "more than"),
        ((2).to_bytes(8, "little") + b"[]", "not valid"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "not valid"),
    ],
)
def test_a_broken_file_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidWeightsError, match=words):
        _read(data)


def test_a_header_nested_deeply_is_refused() -> None:
    header = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    with pytest.raises(InvalidWeightsError):
        _read(len(header).to_bytes(8, "little") + header)
