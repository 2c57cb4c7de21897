"""What a split found and wrote, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens_infer.report.plan_text import range_lines
from tracelens_infer.report.split import SplitResult
from tracelens_infer.report.step_times import median_us
from tracelens_infer.report.wording import (
    detector_text,
    folded,
    kind_text,
    kinds_text,
    plural,
    row_lines,
    time_text,
    together,
)
from tracelens_infer.steps.steady_window import SteadyState, SteadyWindow

__all__ = ["split_lines"]

_LISTED_FILES = 8
_SAME_SHARE = 0.0005  # equal in the digits that are printed


def split_lines(result: SplitResult) -> list[str]:
    """Steps, steady state, and the files: what was found, then where it is."""
    return [result.analysis.trace.name, *_found(result), *_steady(result), *_files(result), ""]


def _found(result: SplitResult) -> Iterator[str]:
    manifest = result.manifest
    kinds = manifest["steps_by_kind"]
    told = f": {kinds_text(kinds)}" if set(kinds) != {"unknown"} else "; they do not tell what a step does"
    detector = detector_text(manifest["detector"])
    yield from folded(f"{plural(manifest['steps'], 'step')} from {detector}{told}", "  ")
    what, clock = ("device", "device") if manifest["step_times"] == "device" else ("host op", "host")
    mark = "labels" if "label" in detector else "marks"
    shares = f"{manifest['explained_share']:.1%} of the {what} time ({manifest['span_share']:.1%} within {mark})"
    yield from folded(f"They hold {shares}; {clock} durations.", "  ")


def _steady(result: SplitResult) -> Iterator[str]:
    state = result.steady_state
    if state is None:
        return
    yield ""
    yield "Steady state"
    workload = result.workload
    if workload is not None:
        yield from (f"  {line}" for line in range_lines(workload))
    yield from _regions(result, state)
    for window in state.windows:
        yield from _window(result, window)
    if not state.windows:
        yield "  None was found."


def _regions(result: SplitResult, state: SteadyState) -> Iterator[str]:
    named = (("ramp-up", state.ramp_up), ("steady", state.region), ("ramp-down", state.ramp_down))
    parts = [f"{name} {_steps(*span)}" for name, span in named if span and span[1] > span[0]]
    if state.peak_requests is not None:
        plateau = "a plateau" if state.plateau else "no plateau"
        highest = max(step.requests for step in result.analysis.steps.steps)
        above = f" (highest {highest:,})" if highest > state.peak_requests else ""
        parts.append(f"{plural(state.peak_requests, 'request')} sustained{above}, {plateau}")
    if parts:
        yield from folded("; ".join(parts), "  ")


def _steps(first: int, last: int) -> str:
    return f"steps {first:,} to {last - 1:,}" if last - first > 1 else f"step {first:,}"


def _window(result: SplitResult, window: SteadyWindow) -> Iterator[str]:
    """A window's steps with their median times, then what speaks for it."""
    steps = result.analysis.steps.steps[window.first : window.last]
    medians = median_us(steps)
    kinds = sorted(window.composition.items(), key=lambda item: -item[1])
    what = "; ".join(
        together(f"{count:,} {kind_text(kind.value)}, median {time_text(medians[kind.value])}") for kind, count in kinds
    )
    yield from row_lines(kind_text(window.kind), f"{_steps(window.first, window.last)}: {what}")
    if window.kind == "mixed" and window.mix_observed is not None:
        yield from row_lines("", f"{window.mix_observed:.1%} of the steps with a prefill{_expected(window)}")
    load = []
    if window.mean_requests is not None:
        load.append(f"{window.mean_requests:.1f} requests per step")
    if window.kind == "decode_only" and window.mean_kv_tokens is not None:
        rank = f" (p{window.kv_percentile:.0f})" if window.kv_percentile is not None else ""
        load.append(f"{window.mean_kv_tokens:,.0f} KV tokens per request{rank}")
    if load:
        yield from row_lines("", ", ".join(load))


def _expected(window: SteadyWindow) -> str:
    """What the workload promises; without one only what the whole region shows, if that is another figure."""
    if window.mix_expected is None:
        return ""
    if window.mix_expected_from == "region average":
        same = window.mix_observed is not None and abs(window.mix_expected - window.mix_observed) < _SAME_SHARE
        return "" if same else f", {window.mix_expected:.1%} in the whole region"
    return f", {window.mix_expected:.1%} expected ({window.mix_expected_from})"


def _files(result: SplitResult) -> Iterator[str]:
    yield ""
    yield f"Written to {result.folder}"
    yield "  split.json, steps.csv, steps.parquet"
    listed = result.outputs[:_LISTED_FILES]
    width = max((len(output.file) for output in listed), default=0)
    for output in listed:
        held = f"{plural(output.last - output.first, 'step')}, {plural(output.events, 'event')}"
        yield f"  {output.file:<{width}}  {held}"
    rest = len(result.outputs) - _LISTED_FILES
    if rest > 0:
        yield f"  and {rest:,} more"
