"""Evicts what was not used for longest, until the weight cache has space for new files.

The order is: quarantine, then versions that no process has staged and files that no version links,
by last use. What a process has staged is never evicted: it keeps a shared lock of the version's
folder.
"""

import os
from contextlib import suppress
from pathlib import Path

from gpu_consumers.weights.cache_folders import CacheFolders, remove_entry
from gpu_consumers.weights.cache_locks import lock_name, try_lock


def evict_until(folders: CacheFolders, used_max: int) -> bool:
    """Evict until at most `used_max` bytes are used; return whether that was possible.

    Needs the cache's lock.
    """
    used = folders.used_bytes()
    for path in folders.quarantined():
        if used <= used_max:
            return True
        remove_entry(path)
        used = folders.used_bytes()
    kept: set[Path] = set()
    while used > used_max:
        before = used
        for path in _by_last_use(folders, kept):
            if used <= used_max:
                return True
            if path.parent == folders.files:
                used -= _evict_file(folders, path)
            elif _evict_version(folders, path):
                used = folders.used_bytes()
                before = used + 1  # files that only this version linked are candidates now
                break
            kept.add(path)
        if used == before:
            return False
    return True


def _by_last_use(folders: CacheFolders, kept: set[Path]) -> list[Path]:
    """Return versions, and files that no version links, but those of `kept`; the oldest first.

    A file is never younger than the last use of the version that it was downloaded for.
    """
    found = []
    for folder in (folders.versions, folders.files):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                status = path.lstat()
                is_linked = folder == folders.files and status.st_nlink > 1
                if path not in kept and not is_linked:
                    found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _evict_version(folders: CacheFolders, path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (NotADirectoryError, FileNotFoundError):  # nothing of the cache
        remove_entry(path)
        return True
    try:
        if not try_lock(descriptor):
            return False
        folders.remove_version(path.name)
    finally:
        os.close(descriptor)
    return True


def _evict_file(folders: CacheFolders, path: Path) -> int:
    """Remove a file unless a process is about to link it to a version; return the freed bytes."""
    lock = folders.locks / lock_name("file", path.name)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not try_lock(descriptor):
            return 0
        status = path.lstat()
        if status.st_nlink > 1:
            return 0
        remove_entry(path)
    except FileNotFoundError:
        return 0
    else:
        return status.st_size
    finally:
        os.close(descriptor)
