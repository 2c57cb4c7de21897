"""What calls what: nesting, rounding, other threads, and where the work counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.loops import MAIN, WORKER, Loop, training
from tracelens_infer.steps.call_tree import CallTree, build_call_tree, nesting
from tracelens_infer.trace.launches import link_device_work
from tracelens_infer.trace.reader import event_names


def tree_of(loop: Loop, folder: Path) -> tuple[CallTree, list[str]]:
    trace = loop.read(folder)
    tree = build_call_tree(trace, link_device_work(trace))
    names = event_names(trace, tree.row)
    return tree, [names[row] for row in tree.row.tolist()]


def slow_parents(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Find each span's innermost enclosing one, each cut short by its own."""
    parents: list[int] = []
    ends: list[int] = []
    for number, (start, end) in enumerate(spans):
        open_spans = [other for other in range(number) if ends[other] > start]
        parents.append(open_spans[-1] if open_spans else -1)
        ends.append(min([end, *(ends[other] for other in open_spans)]))
    return parents, ends


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=60))
def test_nesting_agrees_with_the_definition(spans: list[tuple[int, int]]) -> None:
    ordered = sorted(((start, start + length) for start, length in spans), key=lambda span: (span[0], -span[1]))
    starts = np.array([start for start, _ in ordered], dtype=np.int64)
    parent, depth, end = nesting(starts, np.array([end for _, end in ordered], dtype=np.int64))
    parents, ends = slow_parents(ordered)
    assert parent.tolist() == parents
    assert end.tolist() == ends
    assert [depth[one] + 1 if one >= 0 else 0 for one in parents] == depth.tolist()


def test_work_counts_for_every_caller(tmp_path: Path) -> None:
    loop = Loop()
    loop.span("python_function", "outer", 0, 100)
    loop.span("python_function", "left", 10, 30)
    loop.span("cpu_op", "op", 15, 10)
    loop.launch(16, [("kernel", 5.0)])
    loop.span("python_function", "right", 50, 40)
    loop.launch(60, [("kernel", 7.0), ("kernel", 7.0)])
    tree, names = tree_of(loop, tmp_path)
    assert names == ["outer", "left", "op", "right"]
    assert tree.parent.tolist() == [-1, 0, 1, 0]
    assert tree.kernels.tolist() == [3, 1, 1, 2]
    assert tree.weight_ns[0] == tree.weight_ns[1] + tree.weight_ns[3]
    assert tree.weight_ns[1] == tree.weight_ns[2]
    assert tree.self_ns.tolist() == [0, 0, tree.weight_ns[2], tree.weight_ns[3]]
    assert tree.children(0).tolist() == [1, 3]
    assert tree.children(-1).tolist() == [0]


def test_without_a_device_op_time_is_the_weight_and_counts_once(tmp_path: Path) -> None:
    loop = Loop(device=False)
    loop.span("python_function", "frame", 0, 100)
    loop.span("cpu_op", "outer", 10, 50)
    loop.span("cpu_op", "inner", 20, 20)
    loop.span("python_function", "sched_yield", 70, 20)
    tree, names = tree_of(loop, tmp_path)
    assert not tree.on_device
    weights = dict(zip(names, (tree.weight_ns / 1000).round().tolist(), strict=True))
    assert weights == {"frame": 50, "outer": 50, "inner": 0, "sched_yield": 0}


def test_frames_of_a_helper_thread_are_nobodys_ancestors(tmp_path: Path) -> None:
    loop = Loop()
    loop.span("python_function", "death_pipe_monitor", 0, 1000, thread=0)
    loop.span("python_function", "step", 10, 50)
    loop.op("op", ("kernel", 3.0))
    tree, names = tree_of(loop, tmp_path)
    assert "death_pipe_monitor" not in names
    assert tree.parent[names.index("step")] == -1


def test_the_work_of_another_thread_counts_for_the_call_under_way(tmp_path: Path) -> None:
    loop = Loop()
    loop.span("python_function", "step", 0, 500)
    loop.span("python_function", "backward", 100, 300)
    loop.span("python_function", "optimizer", 420, 50)
    loop.launch(430, [("sgd", 5.0)])
    loop.span("cpu_op", "AddmmBackward", 150, 20, WORKER)
    loop.launch(155, [("gemm", 100.0)], WORKER)
    tree, names = tree_of(loop, tmp_path)
    assert names == ["step", "backward", "optimizer"]
    assert tree.kernels.tolist() == [2, 1, 1]


def test_the_main_thread_of_training_is_the_one_that_is_there_from_start_to_end(tmp_path: Path) -> None:
    trace = training(4).read(tmp_path)
    tree = build_call_tree(trace, link_device_work(trace))
    threads = {trace.lanes.lanes[trace.columns.lane[row]].thread for row in tree.row.tolist()}
    assert threads == {MAIN}


def test_calls_may_nest_deeper_than_sixteen_bits_count() -> None:
    depth = 40_000
    start = np.arange(depth, dtype=np.int64)
    parent, depths, _ = nesting(start, 10 * depth - start)
    assert parent.tolist() == list(range(-1, depth - 1))
    assert depths.tolist() == list(range(depth))


def test_a_host_without_spans_has_an_empty_tree(tmp_path: Path) -> None:
    loop = Loop()
    loop.launch(10, [("kernel", 5.0)])
    tree, _ = tree_of(loop, tmp_path)
    assert len(tree) == 0
    assert tree.total_ns == 0
