"""Goal: a body beyond the limits fails for good, and the engine never gets it."""

import msgspec

from core.outcomes import Outcome
from gpu_consumers.engines.error_answers import error_code_of
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica, batch_of, call_chunk

BODY = b'{"prompt":"a"}'
HOSTILE = b'{"messages":[%b{}]}' % (b"{}," * 3_000)


async def test_a_hostile_item_fails_alone() -> None:
    replica = BulkReplica()
    replica.start_batch(batch_of(BODY, HOSTILE, BODY))
    assert await replica.wait_ended() is None
    assert replica.engine.executed == [[BODY, BODY]]
    failed = next(o for o in replica.log.outcomes if o.outcome is Outcome.FAILED)
    assert (failed.index, failed.status_code, failed.retryable) == (1, 400, False)
    assert error_code_of(failed.body) == "invalid_value"
    assert b"'messages' must have at most 2048 elements." in failed.body
    assert (failed.input_tokens, failed.output_tokens) == (0, 0)


async def test_a_hostile_call_is_refused() -> None:
    replica, chunk = OnlineReplica(), call_chunk()
    items = [msgspec.structs.replace(item, body=HOSTILE) for item in chunk.items]
    await replica.complete(msgspec.structs.replace(chunk, items=items))
    (end,) = replica.log.ends
    assert (end.status_code, replica.engine.served) == (400, 0)
    assert b'"param":"messages"' in end.body
