"""Decrypts the answers in rows of zero-retention jobs.

An answer that cannot be read becomes an error of its line and fails neither the file nor the page.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.clock import SystemClock
from core.object_names import job_key_name
from results.finaliser.output_lines import ItemRow
from storage.crypto.body_ciphers import (
    BodyCipher,
    BodyDirection,
    BodyUnreadableError,
    CipherContext,
)
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_content import read_object
from storage.objects.object_store import ObjectStore

ANSWER_UNREADABLE: Final = "answer_unreadable"


@dataclass(slots=True)
class RowDecrypter:
    """Decrypts the rows of one job. Not thread-safe."""

    store: ObjectStore
    job_id: UUID
    _cipher: BodyCipher | None = field(default=None, init=False, repr=False)
    _is_key_gone: bool = field(default=False, init=False)  # permanent

    def decrypt(self, row: ItemRow, *, with_objects: bool = True) -> ItemRow:
        """Return the row with its answer decrypted; an answer in an object is read into the row.

        Without `with_objects` objects are not read. Raises what a store raises, except for missing
        objects: their rows are returned unchanged.
        """
        encrypted = row.body
        is_object = row.body_key is not None and with_objects and row.status_code
        if self._is_key_gone and (encrypted or is_object):
            return _failed(row, DataKeyDestroyedError.code)
        try:
            if is_object:
                assert row.body_key is not None
                # Its size was bounded when it was stored, and one is held at a time.
                encrypted = read_object(self.store, row.body_key)
            if not encrypted:
                return row
            index = row.item_index if row.copied_from is None else row.copied_from
            body = self._key().decrypt(
                encrypted, CipherContext(self.job_id, BodyDirection.OUT, index)
            )
            return row._replace(body=body, body_key=None)
        except DataKeyDestroyedError:
            self._is_key_gone = True
            return _failed(row, DataKeyDestroyedError.code)
        except BodyUnreadableError:
            return _failed(row, ANSWER_UNREADABLE)
        except ObjectNotFoundError:
            return row

    def _key(self) -> BodyCipher:
        if self._cipher is None:
            self._cipher = DataKeys(self.store, SystemClock()).load(job_key_name(self.job_id))
        return self._cipher


def _failed(row: ItemRow, code: str) -> ItemRow:
    return row._replace(
        status_code=0, error_code=code, error_message=None, body=None, body_key=None
    )
