"""Goal: a caller whose call two replicas run hears one of them."""

from uuid import UUID, uuid4

from api.online.await_reply.open_call import OpenCall
from tests.unit.gpu_consumers.online_bench import OnlineBench, call


async def test_a_record_that_two_replicas_run_has_one_answer() -> None:
    """The partition moved while the call waited for its place: both say the same of its batch."""
    before, after = OnlineBench(), OnlineBench()
    before.engine.full, before.engine.piece = True, b"0"
    batch_id, chunk = uuid4(), call()
    before.begin(chunk, batch_id=batch_id)
    after.begin(chunk, batch_id=batch_id, may_have_run=True)
    await after.settle()
    after.news(permitted=[UUID(int=1)])
    await after.settle()
    for bench in (before, after):
        bench.engine.go.set()
        await bench.end()
    first, *others = after.log.replies
    heard = OpenCall(chunk.job, now_s=0.0)
    for reply in [first, *before.log.replies, *others]:
        heard.receive_reply(reply, now_s=1.0)
    assert before.log.pieces() == [b"0", b"2"]
    assert heard.pieces == after.log.pieces() == [b"1", b"2"]
