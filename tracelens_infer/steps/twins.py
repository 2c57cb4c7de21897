"""Iterations with two labels in a row: an overlap loop that prepares, then launches; a draft and its check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens_infer.steps.candidates import Candidate, StepBoundary
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.trace.columns import median_of
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["merge_drafts", "merge_twins"]

_DRAFT, _DRAFT_AFTER, _VERIFY = "DRAFT", "DRAFT_EXTEND", "VERIFY"

_FEWEST_PAIRS = 4  # two equal labels, one of which launches nothing, may be chance
_TWIN_SHARE = 0.9  # a decode step may look like the one before it once; an overlap loop labels every iteration twice


def merge_twins(candidate: Candidate, work: DeviceWork) -> Candidate:
    """Do two equal labels in a row mark one iteration? Then one of each pair owns no device work: they become one step.

    Told by what each owns, not by name: equal labels in a row are ordinary where every one of them launches work.
    """
    boundaries = candidate.boundaries
    if candidate.on_device or len(boundaries) < 2 or not work.linked.any():
        return candidate
    tile = step_numbers(candidate, work.launch_ns[work.linked])
    works = np.bincount(tile[tile >= 0], minlength=len(boundaries)) > 0
    paired = []
    for first in (0, 1):  # the recording may begin between the two
        pairs = list(zip(boundaries[first::2], boundaries[first + 1 :: 2], strict=False))
        alike = np.array([a.annotation == b.annotation for a, b in pairs], dtype=np.bool_)  # of none, too
        twins = alike & (works[first::2][: len(pairs)] != works[first + 1 :: 2])
        if len(pairs) >= _FEWEST_PAIRS and twins.mean() >= _TWIN_SHARE:
            gap = median_of(np.array([other.start_ns - one.end_ns for one, other in pairs]))
            paired.append((gap, first, pairs, twins))
    if not paired:
        return candidate
    _, first, pairs, twins = min(paired, key=lambda found: found[0])  # the two of an iteration are close together
    merged = list(boundaries[:first])
    for (one, other), is_twin in zip(pairs, twins.tolist(), strict=True):
        if is_twin:
            merged.append(replace(one, end_ns=max(one.end_ns, other.end_ns), tile_end_ns=other.tile_end_ns))
        else:
            merged += [one, other]
    merged += boundaries[first + 2 * len(pairs) :]
    return replace(candidate, boundaries=tuple(merged))


def merge_drafts(candidate: Candidate) -> Candidate:
    """Which labels of speculative decoding belong to one engine step? A draft and the verification that follows it.

    The step is the verification's: it holds the tokens that the engine's requests bring. An extension of the draft
    model's own cache belongs to the step before it.
    """
    merged: list[StepBoundary] = []
    for boundary in candidate.boundaries:
        before = merged[-1] if merged else None
        mode, mode_before = _mode(boundary), _mode(before)
        if before is not None and mode.endswith(_VERIFY) and mode_before == _DRAFT:
            merged[-1] = replace(boundary, row=before.row, start_ns=before.start_ns)
        elif before is not None and mode.startswith(_DRAFT_AFTER) and mode_before:
            merged[-1] = replace(before, end_ns=max(before.end_ns, boundary.end_ns), tile_end_ns=boundary.tile_end_ns)
        else:
            merged.append(boundary)
    if len(merged) == len(candidate.boundaries):
        return candidate
    return replace(candidate, boundaries=tuple(merged))


def _mode(boundary: StepBoundary | None) -> str:
    annotation = boundary.annotation if boundary is not None else None
    return (annotation.mode or "") if annotation is not None else ""
