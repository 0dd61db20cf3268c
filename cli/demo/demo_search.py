"""Semantic search over the embeddings in a job's output file."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np

    Vectors: TypeAlias = np.typing.NDArray[np.float32]


class _Embedding(msgspec.Struct):
    embedding: str  # base64 of little-endian float32


class _Body(msgspec.Struct):
    data: list[_Embedding]


class _Response(msgspec.Struct):
    body: _Body


class _Result(msgspec.Struct):
    custom_id: str
    response: _Response


def read_embeddings(path: Path) -> "tuple[list[str], Vectors]":
    """Return the custom_ids of an output file and their normalised vectors, one per row."""
    import numpy as np

    decoder = msgspec.json.Decoder(_Result)
    with path.open("rb") as lines:
        results = [decoder.decode(line) for line in lines]
    rows = [
        np.frombuffer(base64.b64decode(result.response.body.data[0].embedding), dtype="<f4")
        for result in results
    ]
    vectors = np.stack(rows).astype(np.float32)
    return (
        [result.custom_id for result in results],
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
    )


def most_similar(
    names: Sequence[str], vectors: "Vectors", query: "Vectors", count: int
) -> list[tuple[str, float]]:
    """Return the `count` names with the highest cosine similarity to `query`, descending."""
    import numpy as np

    cosines = vectors @ query
    order = np.argsort(-cosines)[:count]
    return [(names[index], float(cosines[index])) for index in order]
