"""The keys of a model's objects in the object store."""


def file_key(digest: str) -> str:
    """Return the key of a file, by the SHA-256 of its content."""
    return f"models/files/{digest}"


def manifest_key(version: str) -> str:
    """Return the key of a version's manifest."""
    return f"models/manifests/{version}"


def signature_prefix(version: str) -> str:
    """Return what the keys of a version's signatures start with."""
    return f"models/signatures/{version}/"


def signature_key(version: str, key_id: str) -> str:
    """Return the key of the signature that one key made of a version."""
    return f"{signature_prefix(version)}{key_id}"
