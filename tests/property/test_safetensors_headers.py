"""Properties of the reader of weights: hostile bytes are refused, never believed."""

import io
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from registry.memory_plan.safetensors_header import DTYPE_BITS, InvalidWeightsError, read_header
from tests.support.weight_files import entry, header_bytes

_ENTRY = st.builds(
    entry,
    st.sampled_from(sorted(DTYPE_BITS)),
    st.lists(st.integers(-2, 2**64), max_size=4),
    st.integers(0, 64),
    st.integers(0, 64),
)


@given(entries=st.dictionaries(st.text(max_size=4), _ENTRY, max_size=4), size=st.integers(0, 64))
def test_what_is_believed_covers_the_file(entries: dict[str, object], size: int) -> None:
    data = header_bytes(entries, size)
    with suppress(InvalidWeightsError):
        tensors = read_header(io.BytesIO(data), len(data))
        assert sum(tensor.stored_bytes for tensor in tensors) == size


@given(data=st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InvalidWeightsError):
        read_header(io.BytesIO(data), len(data))
