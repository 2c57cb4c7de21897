"""Names and shapes of host ops, as written and as damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracelens_infer.trace.arguments import NO_SHAPES, OpShapes, Shapes, op_shapes
from tracelens_infer.trace.columns import Role, Trace
from tracelens_infer.trace.reader import event_names, read_trace


def op(name: str, args: Any, ts: float = 1.0) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1.0, "args": args}


def trace_of(folder: Path, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return read_trace(path)


def told(batches: list[OpShapes]) -> dict[int, tuple[str, Shapes]]:
    return {
        int(row): (batch.names[name], batch.shapes[shape])
        for batch in batches
        for row, name, shape in zip(batch.rows, batch.name, batch.shape, strict=True)
    }


def test_each_argument_has_its_dimensions(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        op("aten::mm", {"Input Dims": [[8, 256], [256, 768]]}),
        op("aten::cat", {"Input Dims": [[[1, 559, 32], [1, 559, 32]], []]}),
        op("aten::mm", {"Input Dims": [[8, 256], [256, 768]]}, 2.0),
    )
    (batch,) = op_shapes(trace, trace.rows(Role.HOST_OP))
    assert told([batch]) == {
        0: ("aten::mm", ((8, 256), (256, 768))),
        1: ("aten::cat", ((), ())),
        2: ("aten::mm", ((8, 256), (256, 768))),
    }
    assert len(batch) == 3
    assert len(batch.names) == len(batch.shapes) == 2  # each told once


@pytest.mark.parametrize(
    "args",
    [
        None,
        {},
        {"Input Dims": None},
        {"Input Dims": "[[8]]"},
        {"Input Dims": 8},
        [1, 2],
        "text",
    ],
)
def test_an_op_without_readable_shapes_keeps_its_name(tmp_path: Path, args: Any) -> None:  # noqa: ANN401 - JSON
    trace = trace_of(tmp_path, op("aten::mm", args))
    assert told(list(op_shapes(trace, trace.rows(Role.HOST_OP)))) == {0: ("aten::mm", NO_SHAPES)}


@pytest.mark.parametrize("dims", [[-1, 8], [8.5], ["8"], [True], None, {"a": 1}])
def test_an_odd_dimension_leaves_the_other_arguments(tmp_path: Path, dims: Any) -> None:  # noqa: ANN401 - JSON
    trace = trace_of(tmp_path, op("aten::mm", {"Input Dims": [dims, [8, 4]]}))
    assert told(list(op_shapes(trace, trace.rows(Role.HOST_OP)))) == {0: ("aten::mm", ((), (8, 4)))}


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *(op(f"aten::op{i}", {"Input Dims": [[i]]}, float(i)) for i in range(5)))
    assert set(told(list(op_shapes(trace, np.array([3, 1], dtype=np.intp))))) == {1, 3}
    assert list(op_shapes(trace, np.zeros(0, dtype=np.intp))) == []


def test_damaged_ops_are_read_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    sound, other = (json.dumps(op("aten::mm", {"Input Dims": [[8, 4]]}, ts)) for ts in (1.0, 2.0))
    broken = sound.replace("aten::mm", 'a "quoted" name').replace("\\", "")
    path.write_text(f'{{"traceEvents": [{sound},\n{broken},\n{other}]}}')
    trace = read_trace(path)
    found = told(list(op_shapes(trace, trace.rows(Role.HOST_OP))))
    assert [shapes for _, shapes in found.values()] == [((8, 4),)] * 3


def test_a_real_trace_in_slices(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "vllm_cpu" / "g_dense_detailed_shapes_stack_10steps.pt.trace.json.gz")
    rows = trace.rows(Role.HOST_OP)
    batches = list(op_shapes(trace, rows))
    found = told(batches)
    assert len(found) == len(rows) == 10_540
    assert {row: name for row, (name, _) in found.items()} == event_names(trace, rows)
    attention = [shapes for name, shapes in found.values() if name == "_C::cpu_attention_with_kv_cache"]
    assert len(attention) == 40
    assert {(shapes[0], shapes[4], shapes[5]) for shapes in attention} == {((8, 8, 64), (9,), (8,))}
