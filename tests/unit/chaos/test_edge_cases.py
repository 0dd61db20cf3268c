"""Goal: validation and engine treat the edge cases as the poison drill expects."""

import json
from datetime import UTC, datetime

from pydantic import TypeAdapter

from chaos.checkers.results import input_bodies
from chaos.clients.client import ENDPOINT, input_lines
from chaos.drills.context import MODEL
from chaos.drills.poison_items import EDGE_CASES, INVALID_LINES, invalid_file, is_own_answer
from chaos.installations.settings import CRASHING_FAULTS, POISON, POISONED_ROLES
from gpu_consumers.engines.settings import SimulatedFault
from gpu_consumers.engines.simulated.fault_injection_engine import NAN_ANSWER, fault_of
from gpu_consumers.engines.simulated.generated_answers import chat_answer
from gpu_consumers.engines.simulated.shown_model import ShownModel
from jobs.input.line_reader import input_lines as lines_of
from jobs.settings import IntakeSettings
from jobs.validation.file_validation import ValidationResult, validate_file
from registry.models import ModelVersion

LINE_BYTES_MAX: int = IntakeSettings.model_fields["line_bytes_max"].default
VERSION = ModelVersion(
    name=MODEL,
    version="1",
    pool="p",
    engine="simulated",
    endpoints=(ENDPOINT,),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def verdict(content: bytes) -> ValidationResult:
    return validate_file(
        lambda: lines_of([content], line_bytes_max=LINE_BYTES_MAX),
        endpoint=ENDPOINT,
        items_max=100,
        line_bytes_max=LINE_BYTES_MAX,
        find_model=lambda _: VERSION,
    )


def test_edge_cases_are_accepted_and_trigger_their_fault() -> None:
    configured = TypeAdapter(list[SimulatedFault]).validate_python(
        json.loads(POISONED_ROLES["MILLRACE_ENGINE_SIMULATED_FAULTS"])
    )
    faults = [(fault.contains.encode(), fault) for fault in configured]
    for kind, edge_case in EDGE_CASES.items():
        content = input_lines(1, MODEL, {0: edge_case.text}, {0: edge_case.fields})
        assert verdict(content).error_count == 0, kind
        met = fault_of(content, faults)
        assert (met.fault if met else None) == (kind if kind in {*POISON, "nan"} else None)


def test_some_edge_cases_crash_and_some_succeed() -> None:
    assert POISON.keys() >= CRASHING_FAULTS
    assert sum(edge_case.code is None for edge_case in EDGE_CASES.values()) == 3


def test_validation_reports_the_invalid_lines() -> None:
    found = {error.line: error.code.value for error in verdict(invalid_file(MODEL)).errors}
    assert found == INVALID_LINES


def test_every_succeeding_edge_case_has_its_own_answer() -> None:
    """The answer for NaN is a constant that belongs to no other item."""
    good = [edge_case for edge_case in EDGE_CASES.values() if edge_case.code is None]
    texts = {place: edge_case.text for place, edge_case in enumerate(good)}
    fields = {place: edge_case.fields for place, edge_case in enumerate(good)}
    bodies = list(input_bodies(input_lines(len(good), MODEL, texts, fields)).values())
    for body in bodies:
        is_nan = b"POISON-nan" in body
        given = NAN_ANSWER if is_nan else chat_answer(body, ShownModel("simulated"), 1)
        answer = json.loads(given.body)
        assert [other for other in bodies if is_own_answer(other, answer)] == [body]
