"""Brings the files of a model into a folder of this machine, from wherever they are.

Downloads are below `downloads`, one folder for each commit or listing, and hold no links. They are
removed when the caller is done with them, and stay when it fails, so that it can go on from there.
"""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from registry.manifests.manifest import FILES_MAX
from registry.sources.errors import ModelSourceError
from registry.sources.file_choice import choose_files
from registry.sources.file_download import Download, FileSource, RemoteFile
from registry.sources.hub_cache import require_no_snapshot
from registry.sources.hub_repository import HubRepository
from registry.sources.lowest_rate import LowestRate
from registry.sources.settings import SourceSettings
from registry.sources.source_names import FolderSource, HubSource, S3Source, Source
from registry.transfers import Report, report_nothing


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model's files."""

    folder: Path
    source: str | None  # for the manifest: with the commit, None for a folder
    left_out: Sequence[str] = ()  # paths that the source has and the folder has not


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches models."""

    downloads: Path
    env: Mapping[str, str]
    allows_code: bool = False
    report: Report = report_nothing
    pause: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def fetched(self, source: Source) -> Iterator[FetchedModel]:
        """Yield the files of a source.

        Raises ModelSourceError, InvalidManifestError, SettingsError, OSError.
        """
        match source:
            case FolderSource(folder):
                if not folder.is_dir():
                    raise ModelSourceError(f"{folder} is no folder.")
                require_no_snapshot(folder)
                yield FetchedModel(folder, None)
            case HubSource():
                pinned, files = HubRepository(source, self.env).list_files(self._lowest_rate())
                repository = HubRepository(pinned, self.env)
                with self._downloaded(pinned, repository, str(pinned), files) as model:
                    yield model
            case S3Source():
                reader, files = self._list_bucket(source)
                listing = "\n".join(f"{file.path} {file.size} {file.digest}" for file in files)
                key = f"{source}\n{self.env.get('MILLRACE_S3_ENDPOINT_URL', '')}\n{listing}"
                # An ETag names the content, and is not always a digest of it.
                plain = [RemoteFile(file.path, file.size) for file in files]
                with self._downloaded(source, reader, key, plain) as model:
                    yield model

    def _lowest_rate(self) -> LowestRate:
        return LowestRate(SourceSettings.from_env(self.env).bytes_per_s_min, self.clock)

    def _list_bucket(self, source: S3Source) -> tuple[FileSource, list[RemoteFile]]:
        from registry.sources.bucket_folder import BucketFolder

        folder = BucketFolder(source, self.env)
        return folder, folder.list_files(FILES_MAX)

    @contextmanager
    def _downloaded(
        self, source: Source, files_of: FileSource, key: str, files: Sequence[RemoteFile]
    ) -> Iterator[FetchedModel]:
        """Yield the folder of the files; two processes with one key follow one another."""
        kept, left_out = choose_files(str(source), files, allows_code=self.allows_code)
        name = hashlib.sha256(key.encode()).hexdigest()
        self.downloads.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.downloads / name
        with (self.downloads / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            download = Download(files_of, folder, self.report, self.pause, self._lowest_rate)
            download.run(str(source), kept)
            yield FetchedModel(folder, str(source), left_out)
            shutil.rmtree(folder, ignore_errors=True)
