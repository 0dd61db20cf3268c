"""Bounds that more than one room must agree on. What an operator may tune is a setting instead."""

CHUNK_ITEMS_MAX = 100
"""Items in one chunk record. Faust costs about 57 µs a record, whatever it holds."""

CHUNK_BYTES_MAX = 256 * 1024
"""Body bytes in one chunk record; a larger single item travels as (file, offset, length)."""

RECORD_BYTES_MAX = 1_100_000
"""Bytes of one Kafka record: `message.max.bytes` of producers, `max.message.bytes` of topics."""

CUSTOM_ID_CHARS_MAX = 512
"""Characters of a `custom_id`."""

ERROR_LINES_MAX = 100
"""Validation errors kept with a job; the count goes on."""

METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARS_MAX = 64
METADATA_VALUE_CHARS_MAX = 512

LIST_LIMIT_MAX = 100
"""Largest page of a list of batches."""

NUMBER_MAX = 2**31 - 1
"""Largest day or index of an item: Postgres keeps both as `integer`."""

ATTEMPT_MAX = 2**15 - 1
"""Largest number of an attempt, which Postgres keeps as `smallint`."""
