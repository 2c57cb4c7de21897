"""What a split found and wrote, as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tracelens_infer.report.info_text import kinds_text
from tracelens_infer.report.split import SplitResult
from tracelens_infer.steps.steady_window import SteadyState, SteadyWindow

__all__ = ["split_lines"]

_LISTED_FILES = 8


def split_lines(result: SplitResult) -> list[str]:
    """Steps, steady state, and the files: what was found, then where it is."""
    return [f"{result.analysis.trace.name}", *_found(result), *_steady(result), *_files(result)]


def _found(result: SplitResult) -> Iterator[str]:
    steps, chosen = result.analysis.steps, result.analysis.iterations.chosen
    kinds = Counter(step.kind.value for step in steps.steps)
    yield f"  {len(steps.steps):,} steps from {chosen.detector}: {kinds_text(kinds)}"
    what, clock = ("device", "device") if steps.has_device_work else ("host op", "host")
    yield f"  They explain {chosen.explained_share:.1%} of the {what} time; durations are {clock} times."


def _steady(result: SplitResult) -> Iterator[str]:
    state = result.steady_state
    if state is None:
        return
    yield ""
    yield "Steady state"
    yield from _regions(state)
    for window in state.windows:
        yield f"  {window.kind:<15} steps {window.first:,} to {window.last - 1:,}: {_window(window)}"


def _regions(state: SteadyState) -> Iterator[str]:
    if state.peak_requests is not None:
        yield f"  Peak of {state.peak_requests:,} requests" + (", a plateau" if state.plateau else ", no plateau")
    named = (("ramp-up", state.ramp_up), ("steady", state.region), ("ramp-down", state.ramp_down))
    parts = [
        f"{name} {first:,} to {last - 1:,}" for name, span in named if span for first, last in [span] if last > first
    ]
    if parts:
        yield f"  Steps: {', '.join(parts)}"


def _window(window: SteadyWindow) -> str:
    parts = [kinds_text({kind.value: count for kind, count in window.composition.items()})]
    if window.kind == "mixed" and window.mix_observed is not None:
        expected = f", {window.mix_expected:.1%} expected ({window.mix_expected_from})" if window.mix_expected else ""
        parts.append(f"{window.mix_observed:.1%} with a prefill{expected}")
    if window.mean_requests is not None:
        parts.append(f"{window.mean_requests:.1f} requests")
    if window.kind == "decode_only" and window.mean_kv_tokens is not None:
        parts.append(f"{window.mean_kv_tokens:,.0f} KV tokens a request")
    return "; ".join(parts)


def _files(result: SplitResult) -> Iterator[str]:
    yield ""
    yield f"Written to {result.folder}"
    yield "  split.json, steps.csv, steps.parquet"
    for output in result.outputs[:_LISTED_FILES]:
        yield f"  {output.file}  {output.last - output.first:,} steps, {output.events:,} events"
    rest = len(result.outputs) - _LISTED_FILES
    if rest > 0:
        yield f"  ... and {rest:,} more"
