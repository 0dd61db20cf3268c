"""Reads a model repository of the hub by `huggingface_hub`; `HF_ENDPOINT` and `HF_TOKEN` apply."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

from registry.manifests.manifest import FILES_MAX
from registry.sources.errors import ModelSourceError
from registry.sources.file_download import BrokenTransferError, RemoteFile, Transfer
from registry.sources.lowest_rate import LowestRate
from registry.sources.source_names import HubSource

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S: Final = 30.0
"""Longest time to connect, and longest pause of the hub."""

LISTING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the list of a repository's files: 10,000 of them take less than 4 MiB."""

_PARTIAL_CONTENT: Final = 206
_RANGE_PAST_END: Final = 416
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})


class _LargeFile(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blob_id: str | None = msgspec.field(default=None, name="blobId")
    lfs: _LargeFile | None = None


class _Repository(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []


class HubRepository:
    """One repository at one revision."""

    def __init__(self, source: HubSource, env: Mapping[str, str]) -> None:
        """`env` names endpoint and token, which no message and no log shows."""
        from huggingface_hub import constants

        self._source = source
        self._endpoint = (env.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self._token = env.get("HF_TOKEN") or None

    def list_files(self, rate: LowestRate) -> tuple[HubSource, list[RemoteFile]]:
        """Return the source with the commit of its revision, and the files of the commit.

        One answer of the hub has both, so they belong together. Raises ModelSourceError.
        """
        with self._translated_errors():
            found = msgspec.json.decode(self._read_listing(rate), type=_Repository)
            if len(found.siblings) > FILES_MAX:
                raise ModelSourceError(f"{self._source} has more than {FILES_MAX} files.")
            pinned = HubSource(self._source.repository, found.sha)
            if not pinned.is_pinned:
                raise ValueError("no commit")
            return pinned, [_remote_file(sibling) for sibling in found.siblings]

    def _read_listing(self, rate: LowestRate) -> bytes:
        """Return the hub's answer about the repository, which the client would read whole."""
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = f"{self._endpoint}/api/models/{self._source.repository}"
        if self._source.revision is not None:
            url += f"/revision/{quote(self._source.revision, safe='')}"
        headers = build_hf_headers(token=self._token)
        asked = get_session().stream(
            "GET", url, headers=headers, params={"blobs": True}, timeout=TIMEOUT_S
        )
        with asked as response:
            hf_raise_for_status(response)
            data = bytearray()
            rate.resume()
            for block in response.iter_bytes():
                data += block
                rate.advance(len(block))
                if len(data) > LISTING_BYTES_MAX:
                    raise ModelSourceError(
                        f"{self._source} lists its files in more than {LISTING_BYTES_MAX} bytes."
                    )
            return bytes(data)

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[Transfer]:
        """See `FileSource`. The source must have a commit."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(
            self._source.repository,
            file.path,
            revision=self._source.revision,
            endpoint=self._endpoint,
        )
        headers = build_hf_headers(token=self._token)
        headers["Accept-Encoding"] = "identity"  # offsets count the bytes of the file
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with (
            self._translated_errors(),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response,
        ):
            if response.status_code in _BUSY:
                raise BrokenTransferError(f"The hub answers with status {response.status_code}.")
            if response.status_code == _RANGE_PAST_END:
                raise ModelSourceError(f"{file.path!r} is smaller than the hub states.")
            hf_raise_for_status(response)
            # With a chunk size, what arrived of a chunk would be lost when the connection breaks.
            yield Transfer(_offset_of(response, offset), response.iter_raw())

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the errors of the client into one line each. Raises ModelSourceError."""
        import httpx2
        from huggingface_hub import errors

        name = str(self._source)
        try:
            yield
        except ModelSourceError:
            raise
        except errors.GatedRepoError:
            message = f"{name} is gated: accept its terms at the hub, and set HF_TOKEN."
        except errors.RepositoryNotFoundError:
            message = f"{name}: no such repository, or a private one, which needs HF_TOKEN."
        except errors.RevisionNotFoundError:
            message = f"{name}: the repository has no such revision, or has it no more."
        except errors.EntryNotFoundError:
            message = f"{name}: the hub has not all files that it lists."
        except errors.OfflineModeIsEnabled:
            message = f"{name}: HF_HUB_OFFLINE is set, so nothing is downloaded."
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            message = f"{name}: the hub {self._host} answers with status {status}."
        except (httpx2.TransportError, httpx2.InvalidURL):
            raise BrokenTransferError(
                f"{name}: the hub {self._host} does not answer. Without a network, give a folder."
            ) from None
        except (
            httpx2.HTTPError,
            msgspec.MsgspecError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):
            message = f"{name}: the answer of the hub {self._host} cannot be read."
        else:
            return
        raise ModelSourceError(message) from None

    @property
    def _host(self) -> str:
        return urlsplit(self._endpoint).hostname or "?"


def _remote_file(sibling: _Sibling) -> RemoteFile:
    """Return a listed file. Raises ValueError for one without size and digest."""
    lfs = sibling.lfs
    size = sibling.size if lfs is None else lfs.size
    digest = sibling.blob_id if lfs is None else lfs.sha256
    if size is None or not digest:
        raise ValueError("no size or digest")
    return RemoteFile(sibling.rfilename, size, digest, "git" if lfs is None else "sha256")


def _offset_of(response: "httpx2.Response", offset: int) -> int:
    """Return the offset at which the body starts. Raises ModelSourceError for another range."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ModelSourceError("The hub sends a compressed file, which was not asked for.")
    if response.status_code != _PARTIAL_CONTENT:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
        raise ModelSourceError("The hub sends another range than was asked for.")
    return offset
