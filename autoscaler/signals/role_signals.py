"""The load of a role, from what its processes publish or from the lag of its group. Pure."""

from collections.abc import Mapping

from autoscaler.policy.role_need import Role, RoleProcess, RoleSignals
from autoscaler.signals.backlog_table import BacklogTable
from autoscaler.signals.group_lags import GroupLoad


def role_signals(
    role: Role, table: BacklogTable, groups: Mapping[Role, GroupLoad], now_s: float
) -> RoleSignals | None:
    """Return the load of a role; None: nobody reports it now."""
    if role in (Role.API, Role.INTAKE):
        return _published(role, table, now_s)
    load = groups.get(role)
    return None if load is None else _of_group(load, now_s)


def _published(role: Role, table: BacklogTable, now_s: float) -> RoleSignals | None:
    """Each intake reports the waiting bytes of the whole installation: the newest count, once."""
    heard = table.loads(role, now_s)
    if not heard:
        return None
    is_shared = role is Role.INTAKE
    newest, _ = min(heard, key=lambda one: one[1])
    return RoleSignals(
        processes=tuple(
            RoleProcess(
                process_id=load.process_id,
                work_per_s=load.work_per_s,
                waiting=0.0 if is_shared else load.waiting,
                busy=load.busy,
                loop_lag_s=load.loop_lag_s,
                age_s=age_s,
            )
            for load, age_s in heard
        ),
        waiting=newest.waiting if is_shared else 0.0,
    )


def _of_group(load: GroupLoad, now_s: float) -> RoleSignals:
    """Return the load of a group, shared by its members."""
    age_s = max(0.0, now_s - load.at_s)
    return RoleSignals(
        processes=tuple(
            RoleProcess(
                process_id=f"member-{number}",
                work_per_s=load.records_per_s / load.members,
                age_s=age_s,
            )
            for number in range(load.members)
        ),
        waiting=load.waiting_records,
        age_s=age_s,
    )
