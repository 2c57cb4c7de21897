"""The benchmarks run, and measure traces that are what they claim to be. Nothing here depends on how long it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import Bench, options_from, report
from tests.benchmarks.closed_loop import Client
from tests.benchmarks.figures import Figure, against, growth, table
from tests.benchmarks.inputs import Maker
from tests.benchmarks.make_trace import Shape, make_trace
from tests.benchmarks.processes import Cost, run
from tests.benchmarks.results import check_split
from tracelens_infer.report.split import split_trace
from tracelens_infer.report.split_plan import SplitOptions
from tracelens_infer.steps.analyze import analyze_steps
from tracelens_infer.steps.steady_window import find_steady_state
from tracelens_infer.steps.step import EngineMode, GraphMode, StepKind
from tracelens_infer.steps.workload import Workload

SMALL_STEPS = Shape(layers=2, frames=16)
WHOLE_RUN = Client(concurrency=8, prompt_tokens=256, output_tokens=48, prompts=80, warm=False)


def test_generated_trace_is_read_as_it_was_made(tmp_path: Path) -> None:
    made = make_trace(tmp_path / "one.json.gz", Client(), Shape(), megabytes=1)
    analysis = analyze_steps(tmp_path / "one.json.gz")
    assert 1.0e6 < made["bytes"] < 1.4e6
    assert analysis.trace.size_bytes == made["bytes"]
    assert analysis.trace.event_count == made["events"]
    assert 350 < made["bytes"] / made["events"] < 500
    assert len(analysis.steps.steps) == made["steps"]
    assert analysis.iterations.chosen.explained_share == 1.0
    assert analysis.work.linked.all()
    assert analysis.notes == ()


def test_kinds_and_graphs_are_those_that_were_planned(tmp_path: Path) -> None:
    made = make_trace(tmp_path / "run.json.gz", WHOLE_RUN, SMALL_STEPS)
    steps = analyze_steps(tmp_path / "run.json.gz").steps
    found = {kind: sum(step.kind is kind for step in steps.steps) for kind in StepKind}
    assert {kind.value: count for kind, count in found.items() if count} == made["steps_by_kind"]
    assert steps.steps[0].kind is StepKind.PREFILL_ONLY
    assert steps.engine_mode is EngineMode.MIXED
    replayed = {step.graph for step in steps.steps if step.kind is StepKind.DECODE_ONLY}
    assert replayed == {GraphMode.FULL}


def test_whole_run_shows_ramp_up_plateau_and_ramp_down(tmp_path: Path) -> None:
    make_trace(tmp_path / "run.json.gz", WHOLE_RUN, SMALL_STEPS)
    steps = analyze_steps(tmp_path / "run.json.gz").steps
    state = find_steady_state(steps, Workload(8, 48, 0.8))
    assert state.plateau
    assert state.peak_requests == 8
    assert state.ramp_up is not None
    assert state.ramp_down is not None
    assert sum(step.context_requests for step in steps.steps) == 80


def test_equal_options_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("first.gz", "second.gz"):
        make_trace(tmp_path / name, WHOLE_RUN, SMALL_STEPS, megabytes=0.2)
    make_trace(tmp_path / "other.gz", WHOLE_RUN, SMALL_STEPS, megabytes=0.2, seed=1)
    first, second, other = ((tmp_path / name).read_bytes() for name in ("first.gz", "second.gz", "other.gz"))
    assert first == second != other


def test_every_process_is_measured_and_every_figure_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    maker = Maker(
        tmp_path,
        sized_options=("--layers", "1", "--frames", "8"),
        run_options=("--conc", "8", "--osl", "40", "--layers", "1", "--frames", "8"),
        least_prompts=60,
    )
    small, large, whole_run = maker.sized(0.5), maker.sized(1), maker.whole_run(0.5)
    assert maker.sized(1) == large
    assert capfd.readouterr().err.count("making") == 3
    bench = Bench(small, large, whole_run, tmp_path / "out")
    costs = bench.measure(1)
    assert set(costs) == set(bench.commands)
    assert all(cost.wall_s > 0 and cost.peak_mb > 1 for rounds in costs.values() for cost in rounds)
    assert not (tmp_path / "out").exists()
    assert report(bench.figures(costs), judged=False) == 0
    shown = capfd.readouterr().out
    for figure in ("ingest 1 MB, time / floor", "split 1 MB, peak memory", "whole run", "time per MB", "--help"):
        assert figure in shown


def test_another_generator_is_asked_with_its_own_options(tmp_path: Path) -> None:
    script = tmp_path / "generator.py"
    script.write_text(
        "import gzip, json, pathlib, sys\n"
        "out = sys.argv[1]\n"
        "pathlib.Path(out).write_text(json.dumps(sys.argv[2:]))\n"
        "gzip.open(out + '.gz', 'wt').write('x')\n"
    )
    made = Maker(tmp_path / "made", script).whole_run(1)
    assert made.steps_by_kind is None
    assert [path.name for path in (tmp_path / "made").iterdir() if path.suffix == ".json"] == []
    expected = '["--prompts", "256", "--osl", "256", "--layers", "8", "--py", "60", "--start", "cold", "--gz", "1"]'
    assert made.megabytes == len(expected) / 1e6


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3:\nbecause"):
        run([sys.executable, "-c", "import sys; print('because', file=sys.stderr); raise SystemExit(3)"])


def test_a_wrong_result_is_not_measured(tmp_path: Path) -> None:
    made = make_trace(tmp_path / "run.json.gz", WHOLE_RUN, SMALL_STEPS)
    split_trace(tmp_path / "run.json.gz", tmp_path / "out", SplitOptions())
    check_split(tmp_path / "out", made["steps_by_kind"], whole_run=True)
    with pytest.raises(ValueError, match="instead of"):
        check_split(tmp_path / "out", {"decode_only": 1})
    with pytest.raises(ValueError, match="outputs"):
        check_split(tmp_path / "out", None, singles=True)


# Two rounds of two processes: the machine was twice as slow in the second one.
SLOW_THEN_SLOWER = {
    "floor": [Cost(1.0, 1.0, 100.0), Cost(2.0, 2.0, 100.0), Cost(1.0, 1.0, 100.0)],
    "split": [Cost(1.5, 1.5, 80.0), Cost(3.0, 3.0, 90.0), Cost(1.6, 1.6, 85.0)],
}


def test_a_ratio_compares_within_a_round() -> None:
    assert against(SLOW_THEN_SLOWER, "split", "floor") == pytest.approx(1.5)
    assert growth(SLOW_THEN_SLOWER, ("floor", 10.0), ("split", 20.0)) == pytest.approx(0.75)


def test_a_bound_that_is_passed_is_shown_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    split = SLOW_THEN_SLOWER["split"]
    fine, over, unbound = (
        Figure("fine", 1.5, "x", 1.5, split),
        Figure("large", 201.0, "MB", 200.0, split),
        Figure("long", 9.0, "s", None, split),
    )
    assert table([fine, over, unbound])[2:] == [
        "fine      1.50 x  1.50 x  ok      1.60   1.60       85",
        "large     201 MB  200 MB  over    1.60   1.60       85",
        "long      9.00 s       -          1.60   1.60       85",
    ]
    assert report([fine, unbound], judged=True) == 0
    assert report([fine, over], judged=True) == 1
    assert "Over the bound: large." in capsys.readouterr().out
    assert report([over], judged=False) == 0


def test_quick_sets_what_is_not_given() -> None:
    assert (options_from([]).mb, options_from([]).large_mb, options_from([]).runs) == (200, 1000, 5)
    quick = options_from(["--quick", "--runs", "7"])
    assert (quick.mb, quick.large_mb, quick.runs) == (40, 200, 7)
