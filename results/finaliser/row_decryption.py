"""Rows of jobs that retain nothing, with their answers as their owner may read them.

What cannot be read is an error of its line: neither a file nor a page fails for it.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.clock import SystemClock
from core.object_names import job_key_name
from results.finaliser.output_lines import ItemRow
from storage.crypto.body_ciphers import BodyCipher, BodyUnreadableError, Place, Way
from storage.crypto.data_keys import DataKeys, KeyGoneError
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore
from storage.objects.whole_objects import read_object

ANSWER_UNREADABLE: Final = "answer_unreadable"


@dataclass(slots=True)
class RowDecrypter:
    """Decrypts the rows of one job; one thread at a time uses it."""

    store: ObjectStore
    job_id: UUID
    _cipher: BodyCipher | None = field(default=None, init=False, repr=False)
    _is_gone: bool = field(default=False, init=False)  # the key: it does not come back

    def decrypt(self, row: ItemRow, *, with_objects: bool = True) -> ItemRow:
        """Return the row with its answer in clear; one that is an object is then in its row.

        Objects stay where they are without `with_objects`. Raises what a store raises, but for
        objects that are gone: their rows are returned as they are.
        """
        encrypted = row.body
        is_object = row.body_key is not None and with_objects and row.status_code
        if self._is_gone and (encrypted or is_object):
            return _failed(row, KeyGoneError.code)
        try:
            if is_object:
                assert row.body_key is not None
                # Bounded when it was stored, and held one at a time.
                encrypted = read_object(self.store, row.body_key)
            if not encrypted:
                return row
            index = row.item_index if row.copied_from is None else row.copied_from
            body = self._key().decrypt(encrypted, Place(self.job_id, Way.OUT, index))
            return row._replace(body=body, body_key=None)
        except KeyGoneError:
            self._is_gone = True
            return _failed(row, KeyGoneError.code)
        except BodyUnreadableError:
            return _failed(row, ANSWER_UNREADABLE)
        except ObjectMissingError:
            return row

    def _key(self) -> BodyCipher:
        if self._cipher is None:
            self._cipher = DataKeys(self.store, SystemClock()).load(job_key_name(self.job_id))
        return self._cipher


def _failed(row: ItemRow, code: str) -> ItemRow:
    return row._replace(
        status_code=0, error_code=code, error_message=None, body=None, body_key=None
    )
