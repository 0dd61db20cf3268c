"""Chooses which files of a bucket or a repository of the hub are fetched, and which are left out.

Only what a manifest may list is fetched: pickles, other formats of the same weights and code never
reach this machine. A hostile listing is refused: it names paths outside the folder, too many files
or too many bytes.
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

from registry.manifests.manifest import BYTES_MAX, FILES_MAX, check_paths, path_refusal
from registry.sources.errors import ModelSourceError

SOURCE_BYTES_MAX: Final = 4 * 2**40
"""Bytes of all files of a model: 4 TiB."""

_WEIGHTS: Final = frozenset(
    {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz", ".pkl", ".ot"}
)
_SAFETENSORS: Final = ".safetensors"
_DUPLICATE_PREFIX: Final = "consolidated"


class SourceFile(Protocol):
    """A file in a listing."""

    @property
    def path(self) -> str:
        """Relative, with `/`."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...


F = TypeVar("F", bound=SourceFile)


def choose_files(
    source: str, listed: Sequence[F], *, allows_code: bool, bytes_max: int = SOURCE_BYTES_MAX
) -> tuple[list[F], list[str]]:
    """Return the files to fetch, by path, and the paths that are left out.

    Raises ModelSourceError, InvalidManifestError.
    """
    if len(listed) > FILES_MAX:
        raise ModelSourceError(f"{source} has more than {FILES_MAX} files.")
    duplicates = _duplicates(listed)
    kept: list[F] = []
    left_out: list[str] = []
    for file in sorted(listed, key=lambda file: file.path):
        _require_inside(source, file.path)
        is_allowed = path_refusal(file.path, allows_code=allows_code) is None
        if is_allowed and file.path not in duplicates:
            kept.append(file)
        else:
            left_out.append(file.path)
    _require_weights(source, kept, left_out)
    check_paths((file.path for file in kept), allows_code=allows_code)
    if any(not 0 <= file.size < BYTES_MAX for file in kept):
        raise ModelSourceError(f"{source} states sizes that no file has.")
    total = sum(file.size for file in kept)
    if total > bytes_max:
        raise ModelSourceError(f"{source} has {total} bytes; the limit is {bytes_max}.")
    return kept, left_out


def _require_inside(source: str, path: str) -> None:
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in {"", ".", ".."} for part in parts):
        raise ModelSourceError(f"{source} names the file {path[:200]!r}, which leaves its folder.")


def _duplicates(listed: Iterable[SourceFile]) -> set[str]:
    """Return the weights of the folder once more, in the form of another tool."""
    weights = [file.path for file in listed if file.path.endswith(_SAFETENSORS)]
    if not any(path.startswith("model") for path in weights):
        return set()
    return {path for path in weights if PurePosixPath(path).name.startswith(_DUPLICATE_PREFIX)}


def _require_weights(source: str, kept: Sequence[SourceFile], left_out: Sequence[str]) -> None:
    if not kept:
        raise ModelSourceError(f"{source} has no file that may be part of a model.")
    if any(file.path.endswith(_SAFETENSORS) for file in kept):
        return
    if other := [path for path in left_out if PurePosixPath(path).suffix.lower() in _WEIGHTS]:
        raise ModelSourceError(
            f"{source} has no weights in safetensors, only others such as {other[0]!r}: "
            "convert them, for reading them may run code."
        )
    raise ModelSourceError(f"{source} has no weights in safetensors.")
