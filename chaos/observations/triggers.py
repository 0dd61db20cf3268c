"""Triggers that record changes of jobs, claims of leases and the writes under leases.

They record each change in the transaction that makes it, so none can be missed between two reads.
They run as their owner, since the role of a tenant may not write their tables; `session_user` is
the host nevertheless.
"""

from typing import Final

import sqlalchemy as sa

from chaos.checkers.fencing import CursorMove, LeaseEvent
from chaos.checkers.states import TIMESTAMPS, Transition
from chaos.observations.database import select, select_value

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
    -- A fenced write locks or updates the lease's row in the same transaction.
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
    """Record changes of jobs, leases and cursors from now on."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_INSTALL)


def transitions(engine: sa.Engine) -> list[Transition]:
    """Return every update of a job's row."""
    query = (
        "SELECT sequence, replace(job_id::text, '-', '') AS job, old, new, "
        "changed AS changed_stamps FROM chaos.transitions ORDER BY sequence"
    )
    return [Transition(**row) for row in select(engine, query)]


def lease_events(engine: sa.Engine) -> list[LeaseEvent]:
    """Return the claims of leases and the writes under them."""
    query = (
        "SELECT sequence, replace(job_id::text, '-', '') AS job, role, host AS user, claims, "
        "coalesce(epoch, 0) AS epoch, coalesce(fenced, true) AS is_fenced, named_epoch "
        "FROM chaos.leases ORDER BY sequence"
    )
    return [LeaseEvent(**row) for row in select(engine, query)]


def cursor_moves(engine: sa.Engine) -> list[CursorMove]:
    """Return every update of a cursor."""
    query = (
        "SELECT sequence, replace(job_id::text, '-', '') AS job, old, new "
        "FROM chaos.cursors ORDER BY sequence"
    )
    return [CursorMove(**row) for row in select(engine, query)]


def last_lease_event(engine: sa.Engine) -> int:
    """Return the sequence number of the newest lease event; 0 before the first."""
    return int(select_value(engine, "SELECT coalesce(max(sequence), 0) FROM chaos.leases"))
