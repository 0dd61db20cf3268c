"""Bodies that fit no record, by way of the object store."""

import logging
from typing import Final
from uuid import UUID

import msgspec

from api.http.errors import as_api_error
from api.online.answer.call_failures import stream_interrupted
from api.online.send.store_threads import ObjectDeletions, run_in_store_thread
from core.errors import MillraceError
from core.ids import REQUEST, public_id
from core.object_names import REQUESTS
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore
from storage.objects.whole_objects import read_object, write_object

_LOG = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 512 * 1024
"""A larger body travels by reference."""


def request_line(request_id: UUID, endpoint: str, body: bytes) -> bytes:
    """Return a call as the one line of an input file; its body stays as it is."""
    line = {
        "custom_id": public_id(REQUEST, request_id),
        "method": "POST",
        "url": endpoint,
        "body": msgspec.Raw(body),
    }
    return msgspec.json.encode(line)


class LargeBodies:
    """Stores and fetches in threads."""

    def __init__(self, objects: ObjectStore) -> None:
        """Nothing is stored yet."""
        self._objects, self._drops = objects, ObjectDeletions(objects)

    async def store(self, request_id: UUID, line: bytes) -> str:
        """Return the key of a request's line. Raises what a store raises."""
        key = f"{REQUESTS}{request_id.hex}"
        await run_in_store_thread(write_object, self._objects, key, line)
        return key

    async def fetch(self, key: str) -> bytes:
        """Return an answer. Raises ApiError: 502 when it is gone, 503 when there is no store."""
        try:
            return await run_in_store_thread(read_object, self._objects, key)
        except ObjectMissingError:
            raise stream_interrupted() from None
        except MillraceError as failure:
            _LOG.warning("an answer was not fetched", extra={"code": failure.code})
            raise (as_api_error(failure) or stream_interrupted()) from None

    def drop(self, key: str) -> None:
        """Begin to remove an object; one that stays because of the store is swept later."""
        self._drops.begin(key)
