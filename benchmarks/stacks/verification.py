"""Verification of output files; a run with a wrong output is void."""

from pathlib import Path

import msgspec

from benchmarks.data.input_files import custom_id
from benchmarks.runs import VoidRunError


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None
    error: msgspec.Raw | None = None


_DECODER = msgspec.json.Decoder(_Line)


def verify_output(path: Path, items: int) -> None:
    """Check that `path` has one success for every item, in the order of the input.

    The order is that of the custom ids, so there are no duplicates. Raises VoidRunError.
    """
    count = 0
    with path.open("rb") as file:
        for index, text in enumerate(file):
            try:
                line = _DECODER.decode(text)
            except msgspec.MsgspecError:
                raise VoidRunError(f"output line {index + 1} is not a result line") from None
            if line.custom_id != custom_id(index):
                raise VoidRunError(f"output line {index + 1} is of another item")
            if line.response is None or line.response.status_code != 200 or not line.response.body:
                raise VoidRunError(f"the item of output line {index + 1} did not succeed")
            count += 1
    if count != items:
        raise VoidRunError(f"{count} output lines for {items} items")
