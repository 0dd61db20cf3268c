"""What the database and the files hold in the end, and triggers that note what happened on the way.

The triggers see every update of a job's row, every claim of a lease and every write that only its
holder may do, in the transaction that does it: nothing between two looks can be missed. They
note as their owner, since the role of a tenant may not; `session_user` is the host all the same.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from chaos.checkers.fencing import CursorMove, LeaseEvent
from chaos.checkers.results import Tally, Usage, tally_from_files
from chaos.checkers.states import TIMESTAMPS, Transition
from chaos.clients.client import TERMINAL, Client
from chaos.errors import NotServedError
from core.ids import JOB, SINGLE, parse_public_id, public_id

_STAMPS: Final = ", ".join(f"'{name}'" for name in TIMESTAMPS)

_INSTALL: Final = rf"""
CREATE SCHEMA chaos;
CREATE TABLE chaos.transitions (sequence bigserial, job_id uuid, old text, new text,
    changed text[]);
CREATE TABLE chaos.leases (sequence bigserial, job_id uuid, role text, host text, claims boolean,
    epoch bigint, fenced boolean, named_epoch bigint);
CREATE TABLE chaos.cursors (sequence bigserial, job_id uuid, old int, new int);

CREATE FUNCTION chaos.note_write(job uuid, acting text, named bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER AS $$
    -- Who fences a write locks or writes the lease's row in the same transaction.
    INSERT INTO chaos.leases (job_id, role, host, claims, epoch, fenced, named_epoch)
    SELECT job, acting, session_user, false, max(epoch), coalesce(bool_or(
        pg_current_xact_id()::xid IN (xmin, xmax)), false), named
    FROM public.job_leases WHERE job_id = job AND role = acting;
$$;

CREATE FUNCTION chaos.note_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE acting text;
BEGIN
    INSERT INTO chaos.transitions (job_id, old, new, changed)
    SELECT NEW.id, OLD.state, NEW.state, array(
        SELECT name FROM unnest(ARRAY[{_STAMPS}]) AS name
        WHERE to_jsonb(OLD) ->> name IS NOT NULL
            AND to_jsonb(OLD) ->> name IS DISTINCT FROM to_jsonb(NEW) ->> name);
    acting := CASE
        WHEN NEW.kind <> 'batch' THEN NULL
        WHEN OLD.total_count IS NULL AND NEW.total_count IS NOT NULL THEN 'intake'
        WHEN NEW.state = OLD.state THEN NULL
        WHEN OLD.state = 'validating' AND NEW.state IN ('in_progress', 'failed') THEN 'intake'
        WHEN NEW.state IN ('completed', 'expired', 'cancelled') THEN 'finaliser'
    END;
    IF acting IS NOT NULL THEN
        PERFORM chaos.note_write(NEW.id, acting, CASE WHEN acting = 'finaliser' THEN (
            SELECT min(substring(object_key FROM '/([0-9]+)/[^/]+$')::bigint) FROM public.files
            WHERE id IN (NEW.output_file_id, NEW.error_file_id)) END);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER UPDATE ON public.jobs
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();

CREATE FUNCTION chaos.note_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO chaos.leases (job_id, role, host, claims, epoch)
    VALUES (NEW.job_id, NEW.role, session_user, true, NEW.epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_new AFTER INSERT ON public.job_leases
    FOR EACH ROW EXECUTE FUNCTION chaos.note_lease();
CREATE TRIGGER chaos_note_taken AFTER UPDATE ON public.job_leases
    FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION chaos.note_lease();

CREATE FUNCTION chaos.note_cursor() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO chaos.cursors (job_id, old, new)
    VALUES (NEW.job_id, OLD.item_index, NEW.item_index);
    PERFORM chaos.note_write(NEW.job_id, 'intake', NULL);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note AFTER UPDATE ON public.job_cursors
    FOR EACH ROW WHEN (NEW.item_index <> OLD.item_index)
    EXECUTE FUNCTION chaos.note_cursor();
"""


def install_triggers(engine: sa.Engine) -> None:
    """Note from now on what happens to jobs, leases and cursors."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_INSTALL)


def job_states(engine: sa.Engine) -> dict[str, str]:
    """Return every batch and its state."""
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT id, state FROM jobs WHERE kind = 'batch'"))
        return {public_id(JOB, row.id): row.state for row in rows}


def transitions(engine: sa.Engine) -> list[Transition]:
    """Return every update of a job's row."""
    with engine.connect() as connection:
        query = sa.text("SELECT * FROM chaos.transitions ORDER BY sequence")
        return [
            Transition(
                sequence=row.sequence,
                job=row.job_id.hex,
                old=row.old,
                new=row.new,
                changed_stamps=row.changed,
            )
            for row in connection.execute(query)
        ]


def lease_events(engine: sa.Engine) -> list[LeaseEvent]:
    """Return claims of leases and what was written under them."""
    with engine.connect() as connection:
        query = sa.text(
            "SELECT sequence, job_id, role, host, claims, coalesce(epoch, 0) AS epoch, "
            "coalesce(fenced, true) AS fenced, named_epoch FROM chaos.leases ORDER BY sequence"
        )
        return [
            LeaseEvent(
                sequence=row.sequence,
                job=row.job_id.hex,
                role=row.role,
                user=row.host,
                claims=row.claims,
                epoch=row.epoch,
                is_fenced=row.fenced,
                named_epoch=row.named_epoch,
            )
            for row in connection.execute(query)
        ]


def cursor_moves(engine: sa.Engine) -> list[CursorMove]:
    """Return every move of a cursor."""
    with engine.connect() as connection:
        query = sa.text("SELECT * FROM chaos.cursors ORDER BY sequence")
        return [
            CursorMove(sequence=row.sequence, job=row.job_id.hex, old=row.old, new=row.new)
            for row in connection.execute(query)
        ]


def billed_usage(engine: sa.Engine, job: str) -> Usage:
    """Return what the owner of a job, or of a call that has become one, is billed."""
    return _usage(
        engine,
        "SELECT coalesce(sum(item_count), 0) AS items, coalesce(sum(input_tokens), 0) AS taken, "
        "coalesce(sum(output_tokens), 0) AS given FROM usage_ledger WHERE job_id = :job",
        job,
    )


def counter_tally(engine: sa.Engine, job: str) -> Tally:
    """Return what a job's counters say; nothing of a job that has none any more."""
    query = sa.text(
        "SELECT succeeded, failed, cancelled, expired, input_tokens, output_tokens "
        "FROM job_counters WHERE job_id = :job"
    )
    with engine.connect() as connection:
        bound = {"job": parse_public_id(JOB, job)}
        found = connection.execute(query, bound).mappings().one_or_none()
        return Tally(**{str(name): int(count) for name, count in (found or {}).items()})


def succeeded_count(engine: sa.Engine) -> int:
    """Return how many items have succeeded, over all jobs: what fails at once is no work."""
    with engine.connect() as connection:
        query = sa.text("SELECT coalesce(sum(succeeded), 0) FROM job_counters")
        return int(connection.execute(query).scalar_one())


def unfinished_count(engine: sa.Engine, since_s: float, until_s: float) -> int:
    """Return how many jobs of that time, seconds since the epoch, have not ended."""
    query = sa.text(
        "SELECT count(*) FROM jobs WHERE kind = 'batch' AND state <> ALL(:ends) "
        "AND created_at BETWEEN to_timestamp(:since_s) AND to_timestamp(:until_s)"
    )
    bound = {"ends": list(TERMINAL), "since_s": since_s, "until_s": until_s}
    with engine.connect() as connection:
        return int(connection.execute(query, bound).scalar_one())


class JobTiming(NamedTuple):
    """When a job was created, seconds since the epoch, and how long it took to complete."""

    created_s: float
    took_s: float  # infinite: it did not


def job_timings(engine: sa.Engine, jobs: Collection[str]) -> dict[str, JobTiming]:
    """Return what the database's clock says of jobs."""
    query = sa.text(
        "SELECT id, extract(epoch FROM created_at) AS created_s, "
        "extract(epoch FROM completed_at - created_at) AS took_s FROM jobs WHERE id = ANY(:ids)"
    )
    ids = [parse_public_id(JOB, job) for job in jobs]
    with engine.connect() as connection:
        return {
            public_id(JOB, row.id): JobTiming(
                float(row.created_s), float("inf") if row.took_s is None else float(row.took_s)
            )
            for row in connection.execute(query, {"ids": ids})
        }


def ended_s(engine: sa.Engine, job: str, status: str | None = None) -> float:
    """Return when a job ended, in `status` where that is asked; infinite if it did not.

    Seconds since the epoch, by the database's clock.
    """
    query = sa.text(
        "SELECT extract(epoch FROM coalesce(completed_at, failed_at, expired_at, cancelled_at)) "
        "FROM jobs WHERE id = :job AND state = coalesce(:status, state)"
    )
    bound = {"job": parse_public_id(JOB, job), "status": status}
    with engine.connect() as connection:
        found = connection.execute(query, bound).scalar_one_or_none()
        return float("inf") if found is None else float(found)


def held_lease_count(engine: sa.Engine, role: str, user: str) -> int:
    """Return how many leases of a role the host of a database user holds."""
    query = sa.text(
        "SELECT count(*) FROM job_leases l WHERE l.role = :role AND l.expires_at > now() "
        "AND :user = (SELECT c.host FROM chaos.leases c WHERE c.job_id = l.job_id "
        "AND c.role = l.role AND c.claims ORDER BY c.sequence DESC LIMIT 1)"
    )
    with engine.connect() as connection:
        return int(connection.execute(query, {"role": role, "user": user}).scalar_one())


def losable_lease_count(engine: sa.Engine, role: str, user: str) -> int:
    """Return how many of the leases that a host holds another takes if the holder stands still.

    Those are of jobs that have not ended, and that no transaction has locked.
    """
    query = sa.text(
        "SELECT l.job_id FROM job_leases l JOIN jobs j ON j.id = l.job_id "
        "WHERE l.role = :role AND l.expires_at > now() AND j.state IN "
        "('validating', 'in_progress', 'finalizing', 'cancelling') "
        "AND :user = (SELECT c.host FROM chaos.leases c WHERE c.job_id = l.job_id "
        "AND c.role = l.role AND c.claims ORDER BY c.sequence DESC LIMIT 1) "
        "FOR UPDATE OF l, j SKIP LOCKED"
    )
    with engine.connect() as connection:
        return len(connection.execute(query, {"role": role, "user": user}).all())


def last_lease_event(engine: sa.Engine) -> int:
    """Return the sequence of the newest lease step; 0 before there is one."""
    query = sa.text("SELECT coalesce(max(sequence), 0) FROM chaos.leases")
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def await_jobs(
    engine: sa.Engine,
    client: Client,
    job_ids: Collection[str],
    until_s: float,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Return jobs as they ended, or as they are when time is up: judges see what they lack."""
    ended = client.await_terminal(job_ids, until_s)
    late = {job_id: client.poll_job(job_id) for job_id in job_ids if job_id not in ended}
    if late:
        client.recorder.record(
            client.name, "stuck", " ".join(late), "fail", jobs=unfinished_jobs(engine)
        )
        note(f"not terminal: {' '.join(late)}")
    unknown = {"status": "unknown"}
    return ended | {
        job_id: {**unknown, **(job or {}), "id": job_id} for job_id, job in late.items()
    }


def unfinished_jobs(engine: sa.Engine) -> list[dict[str, Any]]:
    """Return what is known of the jobs that have not ended, for whoever looks into it."""
    query = sa.text(
        "SELECT j.id, j.state, j.total_count, u.item_index AS cursor, c.succeeded, c.failed, "
        "c.cancelled, c.expired, c.closed_reason, u.repaired_at::text "
        "FROM jobs j LEFT JOIN job_counters c ON c.job_id = j.id "
        "LEFT JOIN job_cursors u ON u.job_id = j.id WHERE j.state IN "
        "('validating', 'in_progress', 'finalizing', 'cancelling')"
    )
    with engine.connect() as connection:
        return [
            {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}
            for row in connection.execute(query).mappings()
        ]


class JobFiles:
    """Output and error file of a job that has ended."""

    def __init__(self, client: Client, job: Mapping[str, Any]) -> None:
        """Read both; of one that cannot be read every line counts as missing."""
        self.unreadable: list[str] = []
        self.output = self._lines(client, job.get("output_file_id"))
        self.errors = self._lines(client, job.get("error_file_id"))

    def _lines(self, client: Client, file_id: str | None) -> list[dict[str, Any]]:
        try:
            return client.lines(file_id)
        except NotServedError as failure:
            self.unreadable.append(str(failure))
            return []

    def custom_ids(self) -> list[str]:
        """Return those of both files."""
        return [line["custom_id"] for line in self.output + self.errors]

    def usage(self) -> Usage:
        """Return what the lines add up to; an item that failed with an answer is on the bill."""
        given = [line["response"]["body"]["usage"] for line in self.output]
        return Usage(
            items=len(self.output) + sum(bool(line.get("response")) for line in self.errors),
            input_tokens=sum(usage["prompt_tokens"] for usage in given),
            output_tokens=sum(usage.get("completion_tokens", 0) for usage in given),
        )

    def error_codes(self) -> dict[str, str]:
        """Return custom id to code, of the items that failed."""
        return {line["custom_id"]: _code(line) for line in self.errors}

    def tally(self) -> Tally:
        """Return how many lines tell of each outcome, and their tokens."""
        return tally_from_files(self.usage(), len(self.output), map(_code, self.errors))


def _code(line: Mapping[str, Any]) -> str:
    if line.get("error"):
        return str(line["error"]["code"])
    return str(line["response"]["body"]["error"]["code"])


def _usage(engine: sa.Engine, query: str, job: str) -> Usage:
    kind = SINGLE if job.startswith(f"{SINGLE}_") else JOB
    with engine.connect() as connection:
        row = connection.execute(sa.text(query), {"job": parse_public_id(kind, job)}).one()
        return Usage(
            items=int(row.items), input_tokens=int(row.taken), output_tokens=int(row.given)
        )
