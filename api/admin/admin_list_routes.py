"""Routes of operators for what the installation has: pools, replicas, topics, audit log."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Response

from api.admin.operator_requests import OperatorRequest, OperatorRequestDep
from api.audit_log_routes import entry_object
from api.http.paging import PageDep, PageParameters, page_response
from api.http.responses import json_response
from api.online.online_runtime import OnlineRuntime
from api.resources import page_object
from jobs.expansion.pool_capacity import sum_by_pool
from jobs.store.keyset_pages import unknown_cursor_error
from registry.models import list_pools
from tenancy.audit_log import ENTRY
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from topics.records.catalogue import JOB_CLASSES, SHARED_TOPICS, pool_topics
from topics.records.eligibility import LoadState, is_starting, warm_versions
from topics.records.records import Capacity

router = APIRouter()

ID_CHARS_MAX: Final = 512


@router.get("/v1/admin/pools")
async def show_pools(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the pools of all model versions with the capacity that replicas report, by name."""
    versions = await request.run(list_pools)
    reports = _capacity_reports(request)
    names = {*versions, *(capacity.pool for capacity in reports)}
    return page_by_id((_pool_object(name, versions, reports) for name in names), page)


@router.get("/v1/admin/replicas")
async def show_replicas(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the replicas that reported within the last seconds, by id, one object a class."""
    reports = _capacity_reports(request)
    return page_by_id((_replica_object(capacity) for capacity in reports), page)


@router.get("/v1/admin/topics")
async def show_topics(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the topics that the catalogue names for the installation's pools, by name."""
    pools = await request.run(list_pools)
    topics = [*SHARED_TOPICS, *(topic for pool in pools for topic in pool_topics(pool))]
    shown = ({"id": topic.name, "object": "topic", **topic.facts()} for topic in topics)
    return page_by_id(shown, page)


@router.get("/v1/admin/audit_log")
async def show_audit_log(request: OperatorRequestDep, page: PageDep) -> Response:
    """List the operations of operators, newest first."""

    def read(connection: sa.Connection) -> tuple[list[sa.Row[Any]], bool] | None:
        return read_entries(connection, INSTALLATION, after=page.after_row(ENTRY), limit=page.limit)

    return page_response(await request.run(read), entry_object)


def page_by_id(objects: Iterable[dict[str, object]], page: PageParameters) -> Response:
    """Answer with the page behind the id `after`, which need not exist any more."""
    limit, after = page.limit, page.after
    if after is not None and len(after) > ID_CHARS_MAX:
        raise unknown_cursor_error()
    ordered = sorted(objects, key=lambda one: str(one["id"]))
    rest = [one for one in ordered if after is None or str(one["id"]) > after]
    return json_response(page_object(rest[:limit], len(rest) > limit, lambda one: one))


def _capacity_reports(request: OperatorRequest) -> list[Capacity]:
    """Return what the replicas reported lately, as far as this process reads the log."""
    online: OnlineRuntime | None = request.http.app.state.online
    return [] if online is None else online.pools.reports(now_s=online.clock.monotonic_s())


def _pool_object(
    pool: str, versions: Mapping[str, Sequence[str]], reports: Sequence[Capacity]
) -> dict[str, object]:
    classes: dict[str, object] = {}
    for job_class in JOB_CLASSES:
        of_class = [r for r in reports if (r.pool, r.job_class) == (pool, job_class)]
        total = sum_by_pool(of_class).get(pool)  # None: no replica accepts items
        classes[job_class] = {
            "replicas": sum(not is_starting(report) for report in of_class),
            "available_replicas": sum(report.available for report in of_class),
            "loading_replicas": sum(_has_state(report, LoadState.LOADING) for report in of_class),
            "refused_replicas": sum(_has_state(report, LoadState.REFUSED) for report in of_class),
            "refusals": dict(Counter(_refusal_reasons(of_class))),
            "warm_versions": sorted(
                {one for r in of_class if r.available for one in warm_versions(r.models)}
            ),
            "items_per_s": 0.0 if total is None else total.items_per_s,
            "concurrency": 0 if total is None else total.concurrency,
        }
    return {
        "id": pool,
        "object": "pool",
        "model_versions": list(versions.get(pool, ())),
        "classes": classes,
    }


def _replica_object(capacity: Capacity) -> dict[str, object]:
    return {
        "id": f"{capacity.replica_id}/{capacity.job_class}",
        "object": "replica",
        "replica": capacity.replica_id,
        "class": capacity.job_class,
        "pool": capacity.pool,
        "available": capacity.available,
        "has_suspects": capacity.in_danger,
        "items_per_s": capacity.items_per_s,
        "concurrency": capacity.concurrency,
        "partitions": list(capacity.partitions),
        "models": [
            {
                "version": model.version or None,
                "state": model.state,
                "engine_hash": model.engine or None,
                "adapters": list(model.adapters),
                "adapters_max": model.adapters_max,
                "reason": model.reason or None,
            }
            for model in capacity.models
        ],
    }


def _refusal_reasons(reports: Sequence[Capacity]) -> list[str]:
    """Return why each replica that refused its model did so."""
    return sorted(model.reason for report in reports for model in report.models if model.reason)


def _has_state(capacity: Capacity, state: LoadState) -> bool:
    return any(model.state == state for model in capacity.models)
