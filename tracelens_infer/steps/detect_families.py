"""Do labels of an unknown family mark the iterations? Told by how they lie to what was found without labels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.folding import folded
from tracelens_infer.steps.tiles import tiled
from tracelens_infer.trace.columns import MISSING, Int64Array, Trace

__all__ = ["LEAST_MEMBERS", "family_candidates", "placed_family"]

LEAST_MEMBERS = 4
"""Fewer labels alike are as often stages of one run (set-up, warm-up, measurement) as they are iterations."""

_COLLECTIVES = ("nccl:", "rccl:", "gloo:", "mpi:", "hccl:", "xccl:", "c10d::")
"""torch's process groups label each collective by their backend: several a layer, never an iteration."""

_LABELLED_SHARE = 0.9  # of the iterations; what labels fewer is a kind of iteration, not all of them
_LATE_SHARE = 0.02  # a label that begins later than this in an iteration is a scope within it
_EARLY_SHARE = 0.5  # it may begin as much of an iteration early: before the first op comes preparation without any
_LENGTH_SHARE = 0.5  # and lasts at least as long then: what is shorter is the end of the iteration before

_HELD_SHARE = 0.5
"""A label whose spans hold less of the work than this is that of a stage (definitions: half of the kernels)."""

_ROUNDING_NS = 1000  # the resolution of the coarsest writers


def family_candidates(trace: Trace) -> list[Candidate]:
    """Which labels occur at least four times, digits folded? One candidate a family, the longest spans first."""
    rows = np.array(sorted(trace.labels), dtype=np.int64)
    families: dict[str, list[int]] = defaultdict(list)
    for row in rows[np.argsort(trace.columns.start_ns[rows], kind="stable")].tolist():
        if trace.columns.start_ns[row] != MISSING:
            families[folded(trace.labels[row])].append(row)
    found = []
    for family, members in families.items():
        if len(members) < LEAST_MEMBERS:
            continue
        row = _outermost(trace, np.array(members, dtype=np.int64))
        start = trace.columns.start_ns[row]
        boundaries = tiled(row, start, start + np.maximum(trace.columns.duration_ns[row], 1))
        found.append(Candidate(f"family:{family}", boundaries))
    return sorted(found, key=lambda candidate: -candidate.span_ns)


def _outermost(trace: Trace, row: Int64Array) -> Int64Array:
    """Spans that begin while an earlier one of the family is under way count with that one."""
    start = trace.columns.start_ns[row]
    until = np.maximum.accumulate(start + np.maximum(trace.columns.duration_ns[row], 0))
    outer: Int64Array = row[np.append(True, start[1:] >= until[:-1] - _ROUNDING_NS)]
    return outer


def placed_family(family: Candidate, structure: Candidate | None) -> Candidate:
    """The family (graded), rejected with the reason unless it labels what the structure says are the iterations."""
    label = family.detector.partition(":")[2]
    if label.startswith(_COLLECTIVES):
        return replace(family, rejected="collectives")
    if len(family.boundaries) < LEAST_MEMBERS:
        return replace(family, rejected=f"fewer than {LEAST_MEMBERS} that do not overlap")
    if structure is None:
        return replace(family, rejected="nothing that runs repeats along with it")
    reason = _unlike(family, structure)
    return replace(family, rejected=f"{reason} of {structure.detector}" if reason else "")


def _unlike(family: Candidate, structure: Candidate) -> str:
    """Why are the family's spans not the structure's iterations? Empty: they are."""
    starts = np.array([boundary.start_ns for boundary in family.boundaries], dtype=np.int64)
    lengths = np.array([boundary.end_ns for boundary in family.boundaries], dtype=np.int64) - starts
    tiles = np.array([boundary.tile_end_ns - boundary.start_ns for boundary in structure.boundaries], dtype=np.int64)
    typical = float(np.median(tiles))
    begins = np.array([boundary.start_ns for boundary in structure.boundaries], dtype=np.int64)
    number = step_numbers(structure, starts)
    late = (starts - begins[number])[number >= 0]
    if (
        len(late)
        and float(np.median(late)) > (1 - _EARLY_SHARE) * typical
        and np.median(lengths) > _LENGTH_SHARE * typical
    ):
        # It begins before the first op of the iteration that it labels.
        number = step_numbers(structure, starts + int(_EARLY_SHARE * typical))
        late = np.zeros(1, dtype=np.int64)
    counts = np.bincount(number[number >= 0], minlength=len(tiles))
    labelled = counts > 0
    if labelled.mean() < _LABELLED_SHARE:
        return f"labels {int(labelled.sum())} of the {len(tiles)} iterations"
    if np.median(counts[labelled]) > 1:
        return f"repeats {np.median(counts[labelled]):.0f} times in an iteration"
    if len(late) and np.median(late) > _LATE_SHARE * typical:
        return "is a scope within an iteration"
    if family.span_share < _HELD_SHARE:
        return f"holds {family.span_share:.0%} of the work in an iteration"
    return ""
