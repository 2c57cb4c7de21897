"""Step: one iteration of the engine, with its kind, its times and its load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tracelens_infer.notes import Note
from tracelens_infer.steps.annotation import AttentionLoad

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Confidence", "DurationFrom", "EngineMode", "GraphMode", "Step", "StepKind", "Steps"]


class StepKind(StrEnum):
    """What did a step do?"""

    DECODE_ONLY = "decode_only"
    PREFILL_DECODE = "prefill_decode"
    PREFILL_ONLY = "prefill_only"
    EMPTY = "empty"  # zero tokens: the scheduler ran, the model did not
    DUMMY = "dummy"  # a forward without an annotation (data-parallel dummy batch)
    RECOMPUTE = "recompute"  # a generation step that re-computes a preempted request
    UNKNOWN = "unknown"


class GraphMode(StrEnum):
    """How was a step's device work launched?"""

    FULL = "full"  # one launch owns most kernels
    PIECEWISE = "piecewise"  # several launches own several kernels each
    NONE = "none"
    UNKNOWN = "unknown"  # no device work that is linked to a launch


class DurationFrom(StrEnum):
    """Which clock readings is a step's duration the difference of?"""

    DEVICE_END_TO_END = "device_end_to_end"
    DEVICE_EXTENT = "device_extent"  # the first step with device work: there is no end before it
    HOST_START_TO_START = "host_start_to_start"
    HOST_SPAN = "host_span"  # the last step of a trace without device work


class Confidence(StrEnum):
    """How far can a step's kind be trusted?"""

    HIGH = "high"  # its label tells, or the attention op that it ran
    MEDIUM = "medium"  # the shapes of other ops tell, or what the steps around it do
    LOW = "low"  # only kernels or times tell
    UNKNOWN = "unknown"


class EngineMode(StrEnum):
    """Do prefills share a step with decodes?"""

    MIXED = "mixed"
    EXCLUSIVE = "exclusive"
    UNKNOWN = "unknown"  # the trace holds no prefill beside decodes


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of the engine. Times are integer nanoseconds on the trace's own clock.

    ``duration_ns`` is what a client feels: from the end of the previous step's last correlated device event to the
    end of this one's; ``duration_from`` says where that could not be had. ``start_to_start_ns`` is the time from
    this step's first device event to the next step's.
    """

    index: int
    kind: StepKind
    kind_from: str
    load: AttentionLoad | None
    host_start_ns: int
    host_end_ns: int
    tile_end_ns: int
    device_start_ns: int | None
    device_end_ns: int | None
    device_busy_ns: int
    device_idle_ns: int
    duration_ns: int
    duration_from: DurationFrom
    start_to_start_ns: int | None
    graph: GraphMode
    padded_batch: int | None
    stalled_decodes: int
    kernels: int
    annotation: str
    batch_size: int | None = None  # requests, where the label tells them but not by phase
    confidence: Confidence = Confidence.UNKNOWN

    @property
    def context_requests(self) -> int:
        """How many requests prefill in this step?"""
        return self.load.context.requests if self.load else 0

    @property
    def generation_requests(self) -> int:
        """How many requests decode in this step?"""
        return self.load.generation.requests if self.load else 0

    @property
    def requests(self) -> int:
        """How many requests run in this step?"""
        if self.load is None:
            return self.batch_size or 0
        return self.context_requests + self.generation_requests


@dataclass(frozen=True, slots=True)
class Steps:
    """Every step of a trace, in time order, and what was noticed while finding them.

    ``guessed_phases`` says that no label told what the steps do: kinds and loads come from op shapes and kernels.
    """

    steps: tuple[Step, ...]
    engine_mode: EngineMode
    has_device_work: bool
    notes: tuple[Note, ...] = ()
    guessed_phases: bool = False

    def to_frame(self, origin_ns: int = 0) -> pd.DataFrame:
        """The steps as a pandas DataFrame: the columns of steps.csv, one row per step, times since ``origin_ns``."""
        import pandas as pd

        from tracelens_infer.steps.table import steps_table

        table = steps_table(self.steps, origin_ns)
        types = {"int": "Int64", "float": "float64", "text": "str"}
        columns = zip(table.names, table.columns, table.kinds, strict=True)
        return pd.DataFrame({name: pd.array(column, dtype=types[kind]) for name, column, kind in columns})
