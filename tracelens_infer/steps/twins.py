"""Engines that label an iteration twice, one after the other: an overlap loop that prepares, then launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["merge_twins"]

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
    for first in (0, 1):  # the recording may begin between the two
        pairs = [(i, i + 1) for i in range(first, len(boundaries) - 1, 2)]
        twins = [works[i] != works[j] and boundaries[i].annotation == boundaries[j].annotation for i, j in pairs]
        if pairs and sum(twins) >= _TWIN_SHARE * len(pairs):
            break
    else:
        return candidate
    merged = list(boundaries[:first])
    for (i, j), is_twin in zip(pairs, twins, strict=True):
        one, other = boundaries[i], boundaries[j]
        if is_twin:
            merged.append(replace(one, end_ns=max(one.end_ns, other.end_ns), tile_end_ns=other.tile_end_ns))
        else:
            merged += [one, other]
    merged += boundaries[first + 2 * len(pairs) :]
    return replace(candidate, boundaries=tuple(merged))
