"""Steps as a table: which column holds what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tracelens_infer.steps.annotation import PhaseLoad
from tracelens_infer.steps.step import Step

__all__ = ["STEP_COLUMNS", "Cell", "Kind", "Table", "steps_table"]

Kind = Literal["int", "float", "text"]
Cell = int | float | str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns of equal length; ``kinds`` says what each holds, also where all of it is missing."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    columns: tuple[list[Cell], ...]


def _load(phase: Literal["context", "generation"], name: str) -> Callable[[Step], Cell]:
    def value(step: Step) -> Cell:
        load: PhaseLoad | None = getattr(step.load, phase) if step.load is not None else None
        return getattr(load, name) if load is not None else None

    return value


def _time(name: str) -> Callable[[Step, int], Cell]:
    def value(step: Step, origin_ns: int) -> Cell:
        time_ns = getattr(step, name)
        return None if time_ns is None else (time_ns - origin_ns) / 1000

    return value


def _device_time(name: str) -> Callable[[Step, int], Cell]:
    def value(step: Step, _: int) -> Cell:
        return None if step.device_start_ns is None else getattr(step, name) / 1000

    return value


_LOAD_COLUMNS: dict[str, Callable[[Step], Cell]] = {
    "context_requests": _load("context", "requests"),
    "generation_requests": _load("generation", "requests"),
    **{
        f"{phase}_{name}": _load(phase, name)
        for phase in ("context", "generation")
        for name in ("query_tokens", "kv_tokens", "query_kv", "query_query")
    },
}

# Times are microseconds since the trace's first event, in this order in every file.
STEP_COLUMNS: dict[str, tuple[Kind, Callable[[Step, int], Cell]]] = {
    "index": ("int", lambda step, _: step.index),
    "kind": ("text", lambda step, _: step.kind.value),
    "kind_from": ("text", lambda step, _: step.kind_from),
    **{name: ("int", lambda step, _, load=load: load(step)) for name, load in _LOAD_COLUMNS.items()},  # type: ignore[misc]
    "host_start_us": ("float", _time("host_start_ns")),
    "host_duration_us": ("float", lambda step, _: (step.host_end_ns - step.host_start_ns) / 1000),
    "device_start_us": ("float", _time("device_start_ns")),
    "device_end_us": ("float", _time("device_end_ns")),
    "device_busy_us": ("float", _device_time("device_busy_ns")),
    "device_idle_us": ("float", _device_time("device_idle_ns")),
    "duration_us": ("float", lambda step, _: step.duration_ns / 1000),
    "duration_from": ("text", lambda step, _: step.duration_from.value),
    "graph": ("text", lambda step, _: step.graph.value),
    "stalled_decodes": ("int", lambda step, _: None if step.load is None else step.stalled_decodes),
    "kernels": ("int", lambda step, _: step.kernels),
    "annotation": ("text", lambda step, _: step.annotation),
    "start_to_start_us": (
        "float",
        lambda step, _: None if step.start_to_start_ns is None else step.start_to_start_ns / 1000,
    ),
    "padded_batch": ("int", lambda step, _: step.padded_batch),
    "requests": ("int", lambda step, _: None if step.batch_size is None else step.requests),
    "confidence": ("text", lambda step, _: step.confidence.value),
}


def steps_table(steps: Sequence[Step], origin_ns: int) -> Table:
    """One row a step, the columns of STEP_COLUMNS. Times are counted from ``origin_ns``."""
    return Table(
        names=tuple(STEP_COLUMNS),
        kinds=tuple(kind for kind, _ in STEP_COLUMNS.values()),
        columns=tuple([value(step, origin_ns) for step in steps] for _, value in STEP_COLUMNS.values()),
    )
