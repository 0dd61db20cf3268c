"""The keys of a model's objects in the object store."""

from typing import Final

MODELS: Final = "models/"
FILES: Final = f"{MODELS}files/"
MANIFESTS: Final = f"{MODELS}manifests/"
SIGNATURES: Final = f"{MODELS}signatures/"
PROVENANCE: Final = f"{MODELS}provenance/"


def file_key(digest: str) -> str:
    """Return the key of a file, by the SHA-256 of its content."""
    return f"{FILES}{digest}"


def manifest_key(version: str) -> str:
    """Return the key of a version's manifest."""
    return f"{MANIFESTS}{version}"


def signature_prefix(version: str) -> str:
    """Return what the keys of a version's signatures start with."""
    return f"{SIGNATURES}{version}/"


def signature_key(version: str, key_id: str) -> str:
    """Return the key of the signature that one key made of a version."""
    return f"{signature_prefix(version)}{key_id}"


def provenance_prefix(version: str) -> str:
    """Return what the keys of those signatures start with that cover the files of a version alone.

    They show where the files come from, and never let the version load.
    """
    return f"{PROVENANCE}{version}/"


def provenance_key(version: str, key_id: str) -> str:
    """Return the key of the signature that one key made of the files of a version alone."""
    return f"{provenance_prefix(version)}{key_id}"
