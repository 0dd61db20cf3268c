"""Bodies that do not fit a record, stored in the object store."""

import logging
from typing import Final
from uuid import UUID

import msgspec

from api.http.errors import as_api_error
from api.online.call_errors import stream_interrupted
from api.online.calls import PlannedCall
from api.runtime.object_threads import ObjectDeletions, run_in_store_thread
from core.errors import MillraceError
from core.ids import REQUEST, public_id
from core.object_names import REQUESTS
from storage.crypto.body_ciphers import BodyCipher, BodyDirection, CipherContext
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_content import read_object, write_object
from storage.objects.object_store import ObjectStore

_LOG = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 512 * 1024
"""A larger body is sent by reference."""


class LargeBodies:
    """Stores request bodies, and fetches reply bodies."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects, self._deletions = objects, ObjectDeletions(objects)

    async def store_request(self, call: PlannedCall, cipher: BodyCipher | None) -> tuple[str, int]:
        """Store the body of a call, encrypted if there is a `cipher`.

        Return the key and the length of the stored line. Raises the errors of the object store.
        """
        key = f"{REQUESTS}{call.request_id.hex}"
        if cipher is None:
            line = _input_line(call.request_id, call.parsed.endpoint, call.parsed.body)
        else:
            line = cipher.encrypt(
                call.parsed.body, CipherContext(call.request_id, BodyDirection.IN, 0)
            )
        await run_in_store_thread(write_object, self._objects, key, line)
        return key, len(line)

    async def fetch(self, key: str) -> bytes:
        """Return the body of a reply.

        Raises ApiError: 502 when the object is missing, 503 when the store is unavailable.
        """
        try:
            return await run_in_store_thread(read_object, self._objects, key)
        except ObjectNotFoundError:
            raise stream_interrupted() from None
        except MillraceError as failure:
            _LOG.warning("an answer was not fetched", extra={"code": failure.code})
            raise (as_api_error(failure) or stream_interrupted()) from None

    def delete_later(self, key: str) -> None:
        """Delete an object in the background. The orphan sweep deletes it if that fails."""
        self._deletions.start(key)


def _input_line(request_id: UUID, endpoint: str, body: bytes) -> bytes:
    """Return a call as the only line of an input file. Its body stays the same, byte for byte."""
    line = {
        "custom_id": public_id(REQUEST, request_id),
        "method": "POST",
        "url": endpoint,
        "body": msgspec.Raw(body),
    }
    return msgspec.json.encode(line)
