"""Find the steps of an LLM server in a PyTorch-profiler trace, and its steady state.

The names below are the package's public ones; they are imported when first used, so that ``import tracelens_infer``
costs nothing.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from tracelens_infer.errors import (
        DecompressionLimitError,
        InputError,
        LowCoverageError,
        MergedTraceError,
        NothingFoundError,
        OutputExistsError,
        TracelensError,
        UnreadableTraceError,
        UsageError,
    )
    from tracelens_infer.notes import Note
    from tracelens_infer.report.split import SplitResult, split_trace
    from tracelens_infer.report.split_plan import SplitOptions
    from tracelens_infer.steps.analyze import StepAnalysis, analyze_steps
    from tracelens_infer.steps.annotation import (
        AttentionLoad,
        PhaseLoad,
        StepAnnotation,
        StepFormat,
        parse_annotation,
        register_format,
    )
    from tracelens_infer.steps.plan import Plan, make_plan
    from tracelens_infer.steps.steady_window import SteadyState, SteadyWindow, find_steady_state
    from tracelens_infer.steps.step import Step, StepKind, Steps
    from tracelens_infer.steps.workload import Workload
    from tracelens_infer.trace.columns import Trace
    from tracelens_infer.trace.reader import read_trace

__version__ = "0.1.0"

__all__ = [
    "AttentionLoad",
    "DecompressionLimitError",
    "InputError",
    "LowCoverageError",
    "MergedTraceError",
    "Note",
    "NothingFoundError",
    "OutputExistsError",
    "PhaseLoad",
    "Plan",
    "SplitOptions",
    "SplitResult",
    "SteadyState",
    "SteadyWindow",
    "Step",
    "StepAnalysis",
    "StepAnnotation",
    "StepFormat",
    "StepKind",
    "Steps",
    "Trace",
    "TracelensError",
    "UnreadableTraceError",
    "UsageError",
    "Workload",
    "analyze_steps",
    "find_steady_state",
    "make_plan",
    "parse_annotation",
    "read_trace",
    "register_format",
    "split_trace",
]

_HOMES = {
    "notes": ("Note",),
    "report.split": ("SplitResult", "split_trace"),
    "report.split_plan": ("SplitOptions",),
    "steps.analyze": ("StepAnalysis", "analyze_steps"),
    "steps.annotation": (
        "AttentionLoad",
        "PhaseLoad",
        "StepAnnotation",
        "StepFormat",
        "parse_annotation",
        "register_format",
    ),
    "steps.plan": ("Plan", "make_plan"),
    "steps.steady_window": ("SteadyState", "SteadyWindow", "find_steady_state"),
    "steps.step": ("Step", "StepKind", "Steps"),
    "steps.workload": ("Workload",),
    "trace.columns": ("Trace",),
    "trace.reader": ("read_trace",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_HOME_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
