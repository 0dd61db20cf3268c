"""Reads a model from a bucket; `MILLRACE_S3_…` name the server and its keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from core.errors import MillraceError
from registry.sources.errors import ModelSourceError
from registry.sources.file_download import BrokenTransferError, RemoteFile, Transfer
from registry.sources.source_names import S3Source
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.s3_folder_reader import ListedFile, S3FolderReader
from storage.objects.settings import S3Settings


class BucketFolder:
    """The objects of a bucket below a prefix."""

    def __init__(self, source: S3Source, env: Mapping[str, str]) -> None:
        """The bucket of `source` takes the place of the installation's. Raises SettingsError."""
        settings = S3Settings.from_env({**env, f"{S3Settings.env_prefix}BUCKET": source.bucket})
        self._source = source
        self._reader = S3FolderReader(settings, source.prefix)
        self._listed: dict[str, ListedFile] = {}

    def list_files(self, count_max: int) -> list[RemoteFile]:
        """Return the objects, at most `count_max` + 1. Their digest is the ETag.

        Raises ModelSourceError.
        """
        with self._translated_errors():
            listed = self._reader.list_files(count_max)
        self._listed = {file.path: file for file in listed}
        return [RemoteFile(file.path, file.size, file.etag) for file in listed]

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[Transfer]:
        """See `FileSource`."""
        with (
            self._translated_errors(),
            self._reader.read(self._listed[file.path], offset=offset) as blocks,
        ):
            yield Transfer(offset, blocks)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        name = str(self._source)
        try:
            yield
        except ModelSourceError:
            raise
        except ObjectStoreUnavailableError:
            raise BrokenTransferError(f"{name}: the object store does not answer.") from None
        except ObjectNotFoundError:
            raise ModelSourceError(f"{name}: an object changed or disappeared meanwhile.") from None
        except MillraceError as failure:
            raise ModelSourceError(f"{name}: {failure}") from None
