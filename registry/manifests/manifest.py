"""The manifest of a model version: every file with its size and digest, and how the model is run.

The SHA-256 of the manifest's bytes is the version, so a version names exactly one set of files and
one set of options. The bytes are canonical JSON: keys sorted, no spaces, UTF-8 (as RFC 8785, which
differs in some numbers); bytes in any other form are refused, so equal manifests have equal
versions.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final
from unicodedata import is_normalized

import msgspec

from core.errors import Disposition, MillraceError
from registry.engine_options.engine_options import check_options
from registry.engine_options.sampling_defaults import check_sampling

FILES_MAX: Final = 10_000
MANIFEST_BYTES_MAX: Final = 8 * 1024 * 1024
PATH_CHARS_MAX: Final = 512
BYTES_MAX: Final = 2**50
"""Bytes of one file: a thousand times the largest weights of today."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DATA: Final = frozenset(
    {".safetensors", ".json", ".jsonl", ".txt", ".md", ".model", ".jinja", ".tiktoken", ".vocab"}
)
"""Endings of files that hold data and no code. Files of other formats may hold a pickle, which runs
code when it is read (such as `.bin`, `.pt`, `.npy`), or be code."""

_CODE: Final = frozenset({".py"})
_DATA_NAMES: Final = frozenset({"LICENSE", "NOTICE", "README"})


class InvalidManifestError(MillraceError):
    """The manifest is not valid, or its files may not be part of a model."""

    code = "manifest_refused"
    disposition = Disposition.REJECT


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a model."""

    path: str  # relative, with `/`
    size: int  # bytes
    sha256: str  # 64 hex digits


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that determines the answers of a model version."""

    files: tuple[ManifestFile, ...]  # by path
    schema: int = 1
    base: str | None = None  # version of the base model, if this is an adapter
    source: str | None = None  # where the files came from, such as `hf://ORG/NAME@COMMIT`
    engine_options: dict[str, Any] = {}
    sampling: dict[str, Any] = {}  # defaults of a request's sampling parameters
    safety_policy: str | None = None
    allows_code: bool = False  # an operator allowed code among the files for this digest

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


_DECODER: Final = msgspec.json.Decoder(Manifest, strict=True)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical bytes of a manifest. Raises InvalidManifestError."""
    check_manifest(manifest)
    try:
        return _ENCODER.encode({"schema": manifest.schema} | msgspec.to_builtins(manifest))
    except (UnicodeEncodeError, TypeError, RecursionError) as failure:
        raise InvalidManifestError(f"The manifest cannot be encoded: {failure}.") from None


def decode_manifest(data: bytes) -> Manifest:
    """Parse the canonical bytes of a manifest. Raises InvalidManifestError."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise InvalidManifestError(f"The manifest has more than {MANIFEST_BYTES_MAX} bytes.")
    try:
        manifest = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as failure:
        raise InvalidManifestError(f"The manifest is not valid: {failure}.") from None
    if encode_manifest(manifest) != data:
        raise InvalidManifestError("The manifest is not in canonical form.")
    return manifest


def version_of(data: bytes) -> str:
    """Return the version that the bytes of a manifest are: 64 hex digits."""
    return sha256(data).hexdigest()


def check_manifest(manifest: Manifest) -> None:
    """Raise InvalidManifestError or InvalidOptionError unless it may describe a model."""
    if manifest.schema != 1:
        raise InvalidManifestError(f"Manifest schema {manifest.schema} is not known; give 1.")
    if not manifest.files:
        raise InvalidManifestError("The model has no files.")
    if len(manifest.files) > FILES_MAX:
        raise InvalidManifestError(f"The model has more than {FILES_MAX} files.")
    if manifest.base is not None and not _DIGEST.fullmatch(manifest.base):
        raise InvalidManifestError("`base` is not a version of 64 hex digits.")
    check_options(manifest.engine_options)
    check_sampling(manifest.sampling)
    paths = [file.path for file in manifest.files]
    if paths != sorted(paths):
        raise InvalidManifestError("The files are not sorted by path.")
    check_paths(paths, allows_code=manifest.allows_code)
    for file in manifest.files:
        if not 0 <= file.size < BYTES_MAX or not _DIGEST.fullmatch(file.sha256):
            raise InvalidManifestError(f"The size or digest of {file.path} is not valid.")


def check_paths(paths: Iterable[str], *, allows_code: bool) -> None:
    """Raise InvalidManifestError if a path may not be part of a model, and say which and why."""
    seen: dict[str, str] = {}
    folders: set[str] = set()
    for path in paths:
        if reason := path_refusal(path, allows_code=allows_code):
            raise InvalidManifestError(f"{path!r} may not be part of a model: {reason}.")
        folded = path.casefold()  # two such files are one on a file system without case
        if folded in seen:
            raise InvalidManifestError(f"The paths {seen[folded]!r} and {path!r} name one file.")
        seen[folded] = path
        folders.update(str(parent) for parent in PurePosixPath(folded).parents)
    if both := folders & seen.keys():
        raise InvalidManifestError(f"The path {seen[min(both)]!r} is a file and a folder.")


def path_refusal(path: str, *, allows_code: bool) -> str | None:
    """Return why a path may not be part of a model, or None if it may."""
    if not path or len(path) > PATH_CHARS_MAX:
        return f"its path has no or more than {PATH_CHARS_MAX} characters"
    if not path.isprintable() or "\\" in path or not is_normalized("NFC", path):
        return "its path has a control character, a backslash or a decomposed letter"
    parts = path.split("/")
    if path.startswith("/") or any(part in {"", ".", ".."} for part in parts):
        return "its path leaves the folder, or is not in its shortest form"
    if any(part.startswith(".") for part in parts):
        return "it is hidden"
    ending = PurePosixPath(path).suffix.lower()
    if ending in _CODE:
        return None if allows_code else "it is code, which an operator has to allow"
    if ending not in _DATA and parts[-1] not in _DATA_NAMES:
        return "only safetensors, JSON, text and tokenizer files may be"
    return None


def code_paths(manifest: Manifest) -> list[str]:
    """Return the paths of the files that are code."""
    paths = [file.path for file in manifest.files]
    return [path for path in paths if PurePosixPath(path).suffix.lower() in _CODE]


def changed_fields(old: Manifest, new: Manifest) -> Mapping[str, tuple[Any, Any]]:
    """Return what differs between two manifests: by field, or `files/PATH`, the old and new value.

    The value of a file is its digest, None where it is absent.
    """
    found: dict[str, tuple[Any, Any]] = {}
    before, after = ({file.path: file.sha256 for file in one.files} for one in (old, new))
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            found[f"files/{path}"] = before.get(path), after.get(path)
    for name in Manifest.__struct_fields__:
        values = getattr(old, name), getattr(new, name)
        if name != "files" and values[0] != values[1]:
            found[name] = values
    return found
