"""Goal: rows are decrypted with the key of their job, which is read once."""

from core.clock import SystemClock
from core.ids import new_uuid
from core.object_names import answer_prefix, job_key_name
from core.outcomes import Outcome
from results.finaliser.item_rows import RowDecrypter
from results.finaliser.output_lines import ItemRow
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from tests.support.memory_objects import MemoryStore

JOB = new_uuid()


def row(index: int, body: bytes | None, body_key: str | None = None) -> ItemRow:
    return ItemRow(index, Outcome.SUCCEEDED, 200, None, None, None, body, body_key)


def test_key_is_read_once() -> None:
    store = MemoryStore()
    cipher = DataKeys(store, SystemClock()).load_or_create(job_key_name(JOB))
    rows = [
        row(n, cipher.encrypt(b"%d" % n, CipherContext(JOB, BodyDirection.OUT, n)))
        for n in range(5)
    ]

    opener = RowDecrypter(store, JOB)
    assert [opener.decrypt(one).body for one in rows] == [b"%d" % n for n in range(5)]
    assert store.read_count == 1


def test_destroyed_key_is_read_once_and_no_answers() -> None:
    store = MemoryStore()
    large = f"{answer_prefix(JOB)}a"
    store.objects[large] = b"encrypted"
    opener = RowDecrypter(store, JOB)

    said = [opener.decrypt(row(n, b"encrypted")) for n in range(5)]
    said += [opener.decrypt(row(n, None, large)) for n in range(5, 10)]
    assert {one.error_code for one in said} == {DataKeyDestroyedError.code}
    assert {(one.status_code, one.body, one.body_key) for one in said} == {(0, None, None)}
    assert store.read_count == 1

    empty = row(10, None)
    assert opener.decrypt(empty) == empty
    listed = row(11, None, large)
    assert opener.decrypt(listed, with_objects=False) == listed
