"""Goal: no route and no dependency of one costs a request a change of threads."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.app import ROUTERS


def calls(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for inner in dependant.dependencies:
        yield from calls(inner)


def test_routes_and_their_dependencies_run_on_the_event_loop() -> None:
    # FastAPI calls synchronous ones in a thread, and the change takes longer than they do.
    routes = [route for router in ROUTERS for route in router.routes]
    called = {
        call for route in routes if isinstance(route, APIRoute) for call in calls(route.dependant)
    }
    assert len(called) > len(routes) > 10
    assert [call for call in called if not inspect.iscoroutinefunction(call)] == []
