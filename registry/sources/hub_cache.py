"""Recognises a folder of the cache of `huggingface_hub`, whose files are symbolic links."""

from pathlib import Path
from typing import Final

from registry.sources.errors import ModelSourceError
from registry.sources.source_names import is_hub_id

_REPOSITORY: Final = "models--"
_SNAPSHOTS: Final = "snapshots"


def require_no_snapshot(folder: Path) -> None:
    """Raise ModelSourceError for a snapshot of the cache, saying how its model is published.

    The links are not followed: what is published must be what lies in the folder.
    """
    _, slash, name = folder.absolute().parent.parent.name.partition(_REPOSITORY)
    repository = name.replace("--", "/", 1)
    if folder.absolute().parent.name != _SNAPSHOTS or not slash or not is_hub_id(repository):
        return
    if not any(path.is_symlink() for path in folder.iterdir()):
        return
    commit = folder.absolute().name
    raise ModelSourceError(
        f"The cache of the hub holds links and no files: give hf://{repository}@{commit}, or run "
        f"`hf download {repository} --revision {commit} --local-dir FOLDER` and give FOLDER."
    )
