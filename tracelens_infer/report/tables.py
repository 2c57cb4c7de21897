"""Tables as files: one writer a format, straight from columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_infer.steps.annotation import PhaseLoad
from tracelens_infer.steps.step import Step

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["STEP_COLUMNS", "Table", "steps_table", "write_csv", "write_parquet"]

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
    "device_busy_us": ("float", lambda step, _: step.device_busy_ns / 1000),
    "device_idle_us": ("float", lambda step, _: step.device_idle_ns / 1000),
    "duration_us": ("float", lambda step, _: step.duration_ns / 1000),
    "duration_from": ("text", lambda step, _: step.duration_from.value),
    "graph": ("text", lambda step, _: step.graph.value),
    "stalled_decodes": ("int", lambda step, _: step.stalled_decodes),
    "kernels": ("int", lambda step, _: step.kernels),
    "annotation": ("text", lambda step, _: step.annotation),
    "start_to_start_us": (
        "float",
        lambda step, _: None if step.start_to_start_ns is None else step.start_to_start_ns / 1000,
    ),
    "padded_batch": ("int", lambda step, _: step.padded_batch),
    "requests": ("int", lambda step, _: step.requests),
    "confidence": ("text", lambda step, _: step.confidence.value),
}


def steps_table(steps: Sequence[Step], origin_ns: int) -> Table:
    """One row a step, the columns of STEP_COLUMNS. Times are counted from ``origin_ns``."""
    return Table(
        names=tuple(STEP_COLUMNS),
        kinds=tuple(kind for kind, _ in STEP_COLUMNS.values()),
        columns=tuple([value(step, origin_ns) for step in steps] for _, value in STEP_COLUMNS.values()),
    )


def write_csv(table: Table, path: Path) -> None:
    """One line a row; missing values are empty; times with three decimals, which is one nanosecond."""
    formatted = [
        [_csv_cell(cell, kind) for cell in column] for column, kind in zip(table.columns, table.kinds, strict=True)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.names)
        writer.writerows(zip(*formatted, strict=True))


def _csv_cell(cell: Cell, kind: Kind) -> str:
    if cell is None:
        return ""
    return f"{cell:.3f}" if kind == "float" else str(cell)


def write_parquet(table: Table, path: Path) -> None:
    """The same columns, typed: int64, double and text, null where missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_arrow_array(column, kind) for column, kind in zip(table.columns, table.kinds, strict=True)]
    with path.open("wb") as file:  # of a path pyarrow asks whether it is an address, and refuses bytes that are no text
        pq.write_table(pa.Table.from_arrays(arrays, names=list(table.names)), file)


def _arrow_array(column: Sequence[Cell], kind: Kind) -> pa.Array:
    """An Arrow array out of its buffers; pa.array() would import pandas to ask whether the column is one of its own."""
    import pyarrow as pa

    present = np.array([cell is not None for cell in column], dtype=np.bool_)
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    if kind == "text":
        texts = [str(cell or "").encode() for cell in column]
        ends = np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64)).astype(np.int32)
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(column), buffers)
    dtype = np.int64 if kind == "int" else np.float64
    values = np.array([0 if cell is None else cell for cell in column], dtype=dtype)
    arrow_type = pa.int64() if kind == "int" else pa.float64()
    return pa.Array.from_buffers(arrow_type, len(column), [validity, pa.py_buffer(values)])
