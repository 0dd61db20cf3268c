"""Reads the header of a safetensors file: which tensors it has, and how many bytes each takes.

A file begins with the length of its header as 8 little-endian bytes; the header is JSON; the data
of the tensors follow without gaps. No data are read. A header is untrusted input: everything that
it claims is checked against the size of the file. Source of the format and its limit of 100 MB:
the safetensors README, "Format".
"""

from collections.abc import Iterable
from math import prod
from typing import Any, BinaryIO, Final

import msgspec

from core.errors import Disposition, MillraceError

HEADER_BYTES_MAX: Final = 100_000_000
TENSORS_MAX: Final = 1_000_000
DIMENSIONS_MAX: Final = 16
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"

DTYPE_BITS: Final = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
"""Bits of one element by its type."""


class InvalidWeightsError(MillraceError):
    """The weights of the model cannot be read."""

    code = "model_weights_invalid"
    disposition = Disposition.REJECT


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of a file."""

    name: str
    dtype: str  # a key of DTYPE_BITS
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the data in the file."""
        return self.elements * DTYPE_BITS[self.dtype] // 8


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_HEADER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(_Entry)
_TEXTS: Final = msgspec.json.Decoder(dict[str, Any])


def read_header(file: BinaryIO, file_bytes: int) -> list[Tensor]:
    """Return the tensors of a safetensors file by the order of their data.

    `file` stands at its start and has `file_bytes`. Reads the header alone. Raises
    InvalidWeightsError for a header that contradicts itself or the size of the file, and OSError.
    """
    length = int.from_bytes(_read(file, _LENGTH_BYTES), "little")
    if length > HEADER_BYTES_MAX:
        raise InvalidWeightsError(f"A safetensors header has more than {HEADER_BYTES_MAX} bytes.")
    data_bytes = file_bytes - _LENGTH_BYTES - length
    if data_bytes < 0:
        raise InvalidWeightsError("The header of a safetensors file is longer than the file.")
    return _parse_header(_read(file, length), data_bytes)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise InvalidWeightsError("A safetensors file ends within its header.")
    return data


def _parse_header(header: bytes, data_bytes: int) -> list[Tensor]:
    try:
        entries = _HEADER.decode(header)
        if (metadata := entries.pop(_METADATA, None)) is not None:
            _TEXTS.decode(metadata)
        if len(entries) > TENSORS_MAX:
            raise InvalidWeightsError(f"A safetensors file has more than {TENSORS_MAX} tensors.")
        tensors = [(name, _ENTRY.decode(entry)) for name, entry in entries.items()]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidWeightsError("The header of a safetensors file is not valid.") from None
    return _check_data(tensors, data_bytes)


def _check_data(entries: Iterable[tuple[str, _Entry]], data_bytes: int) -> list[Tensor]:
    """Require that the tensors cover the data once, without gaps."""
    tensors: list[Tensor] = []
    position = 0
    for name, entry in sorted(entries, key=lambda entry: entry[1].data_offsets):
        start, end = entry.data_offsets
        if start != position:
            relation = "overlaps the one before" if start < position else "leaves a gap before it"
            raise InvalidWeightsError(f"The tensor {_shown(name)} {relation}.")
        tensors.append(_checked_tensor(name, entry))
        position = end
    if position != data_bytes:
        raise InvalidWeightsError(
            f"The tensors of a safetensors file take {position} bytes; the file has {data_bytes}."
        )
    return tensors


def _checked_tensor(name: str, entry: _Entry) -> Tensor:
    """Return the tensor of an entry whose type, shape and offsets agree."""
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        raise InvalidWeightsError(
            f"The tensor {_shown(name)} has the unknown type {_shown(entry.dtype)}."
        )
    if len(entry.shape) > DIMENSIONS_MAX or any(size < 0 for size in entry.shape):
        raise InvalidWeightsError(f"The shape of the tensor {_shown(name)} is not valid.")
    start, end = entry.data_offsets
    if prod(entry.shape) * bits != (end - start) * 8:
        raise InvalidWeightsError(
            f"The tensor {_shown(name)} has {end - start} bytes, which its shape and type are not."
        )
    return Tensor(name, entry.dtype, tuple(entry.shape))


def _shown(name: str) -> str:
    """Return a name from the file as it may stand in a message."""
    return repr(name[:128])
