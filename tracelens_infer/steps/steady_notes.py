"""What the search for the steady state has to tell: one function a note, so that each text stands in one place."""

from __future__ import annotations

from tracelens_infer.notes import Note
from tracelens_infer.steps.regions import Limit, Range

__all__ = [
    "analytic_not_in_trace",
    "analytic_used",
    "bound_by_prefill",
    "cache_hits",
    "durations_unsteady",
    "expected_mix",
    "kv_untold",
    "loads_unknown",
    "mix_mismatch",
    "no_active_steps",
    "no_plateau",
    "no_steps",
    "no_window",
    "num_steps_raised",
    "peak_is_not_conc",
    "position_unknown",
    "position_unused",
    "region_short",
    "several_regions",
    "too_few_steps",
]

WITHHELD = " The figures of CONC, OSL and R are withheld."


def no_steps() -> Note:
    """The trace holds nothing to look at."""
    return Note("warning", "no_steps", "The trace holds no step.")


def no_active_steps(count: int) -> Note:
    """Every step is idle or a dummy."""
    return Note("warning", "no_active_steps", "No step ran a request, so there is no steady state.", count)


def loads_unknown(with_workload: bool) -> Note:
    """The steps tell no requests, so only their durations can be compared."""
    unchecked = " CONC, OSL and R cannot be checked against them." if with_workload else ""
    return Note(
        "warning",
        "loads_unknown",
        "The steps do not tell their requests: the window is where durations are level, and which of its steps"
        f" prefill is unknown.{unchecked}",
    )


def durations_unsteady(variation: float) -> Note:
    """No window has level durations."""
    return Note(
        "warning",
        "durations_unsteady",
        f"No window of this length has level durations; in the steadiest they vary by {variation:.0%} of their mean.",
    )


def too_few_steps(count: int, with_workload: bool) -> Note:
    """The trace is too short to stay anywhere."""
    what = "1 step is" if count == 1 else f"{count:,} steps are"
    return Note(
        "warning",
        "too_few_steps",
        f"{what} too few to tell a steady state.{WITHHELD if with_workload else ''}",
        count,
    )


def no_plateau(peak: int, limit: Limit, with_workload: bool) -> Note:
    """Concurrency does not stay near its peak."""
    reason = "what limits it cannot be told from the steps" if limit == "unknown" else f"limited by {limit}"
    return Note(
        "warning",
        "no_plateau",
        f"Concurrency never settles near its peak of {peak:,} requests: {reason}.{WITHHELD if with_workload else ''}",
    )


def peak_is_not_conc(peak: int, expected: float) -> Note:
    """The trace is of another workload, or of a part of it."""
    return Note(
        "warning",
        "peak_is_not_conc",
        f"The trace's peak is {peak:,} requests a step; by CONC it should be {expected:,g} (with data-parallel ranks"
        " CONC / DP, with pipeline stages about CONC / PP).",
    )


def bound_by_prefill(peak: int, expected: float) -> Note:
    """The peak is below CONC for a known reason."""
    return Note(
        "warning",
        "bound_by_prefill",
        f"The engine is bound by prefill: it runs {peak:,} requests at most and never reaches the {expected:,g} of"
        " CONC, because prompts arrive faster than steps can take them in.",
    )


def several_regions(regions: int, used: Range) -> Note:
    """More than one stretch is near the peak."""
    return Note(
        "info",
        "several_regions",
        f"{regions} regions are near the peak; the windows come from steps {used[0]:,} to {used[1]:,}.",
        regions,
    )


def num_steps_raised(asked: int, raised: int) -> Note:
    """A representative mix takes more steps."""
    return Note(
        "info",
        "num_steps_raised",
        f"Windows hold {raised:,} steps instead of {asked:,}: fewer cannot be expected to hold a prefill.",
    )


def region_short(wanted: int, region: Range) -> Note:
    """The region cannot hold a window of the wanted length."""
    return Note(
        "info",
        "region_short",
        f"Windows of {wanted:,} steps do not fit in the {region[1] - region[0]:,} of the region.",
    )


def analytic_used(region: Range) -> Note:
    """The workload tells which part of the run is most representative."""
    return Note(
        "info",
        "analytic_region_used",
        f"Steps {region[0]:,} to {region[1]:,} lie in the analytic window of CONC, OSL and R; the mix there is judged"
        " by the local figure.",
    )


def analytic_not_in_trace() -> Note:
    """The trace holds another part of the run."""
    return Note(
        "info",
        "analytic_region_not_in_trace",
        "The trace holds too little of the analytic window of CONC, OSL and R; the largest region is used and the mix"
        " judged by the stationary figure.",
    )


def position_unknown() -> Note:
    """It is unknown which part of the run the trace holds."""
    return Note(
        "info",
        "trace_position_unknown",
        "Where in the run the trace lies is unknown, for it does not hold both ramp-up and ramp-down; the mix is"
        " judged by the stationary figure (--trace-starts-at tells).",
    )


def position_unused(reason: str) -> Note:
    """A position was given, or seen, and cannot be used."""
    return Note("info", "trace_position_unused", f"The trace's place in the run is not used: {reason}.")


def no_window(kind: str, reason: str) -> Note:
    """A kind of window is absent."""
    name = kind.replace("_", "-")
    return Note("info", f"no_{kind}_window", f"There is no {name} window: {reason}.")


def expected_mix(observed: float, expected: float, source: str, pacing: str | None) -> Note:
    """Which figure is the window judged by?"""
    figure = f"{source} figure, prefills {pacing}" if pacing else source
    return Note(
        "info", "expected_mix", f"{observed:.1%} of the steps carry a prefill; expected {expected:.1%} ({figure})."
    )


def mix_mismatch(observed: float, expected: float) -> Note:
    """The trace is of another workload, or its load was not steady."""
    return Note(
        "warning",
        "mix_mismatch",
        f"{observed:.1%} of the region's steps carry a prefill, and CONC, OSL and R promise {expected:.1%}: are they"
        " those of this run (vLLM's own ratio needs --range-ratio-style vllm), and was the load steady?",
    )


def kv_untold() -> Note:
    """Contexts cannot be compared."""
    return Note(
        "info",
        "kv_tokens_unknown",
        "The steps do not tell their KV tokens: this is the longest decode-only run, not the one with the largest"
        " contexts.",
    )


def cache_hits(hits: int, prefills: int) -> Note:
    """Prefills that the prefix cache answered."""
    return Note(
        "warning",
        "prefill_cache_hits",
        f"{hits:,} of {prefills:,} steps with a prefill compute one new token a request: cache hit, no real prefill.",
        hits,
    )
