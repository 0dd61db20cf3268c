"""Limits that several packages share. A limit that operators may change is a setting."""

CHUNK_ITEMS_MAX = 100
"""Items in one chunk record. Faust takes about 57 µs a record of any size."""

CHUNK_BYTES_MAX = 256 * 1024
"""Body bytes in one chunk record; a larger item is sent as (file, offset, length)."""

RECORD_BYTES_MAX = 1_100_000
"""Bytes of one Kafka record: `message.max.bytes` of producers, `max.message.bytes` of topics."""

CUSTOM_ID_CHARS_MAX = 512
"""Characters of a `custom_id`."""

ERROR_LINES_MAX = 100
"""Validation errors stored with a job; further errors are only counted."""

METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARS_MAX = 64
METADATA_VALUE_CHARS_MAX = 512

LIST_LIMIT_MAX = 100
"""Largest page of a list of batches."""

NUMBER_MAX = 2**31 - 1
"""Largest day or index of an item: both are `integer` columns."""

ATTEMPT_MAX = 2**15 - 1
"""Largest attempt number: a `smallint` column."""

CLIENT_LEFT_STATUS = 499
"""Status, as in nginx, of the end of a call whose client left. It has the usage of what ran."""
