"""find_by_cascade(): where are the iterations of a trace that carries no step label that we know?"""

from __future__ import annotations

from dataclasses import replace

from tracelens_infer.steps.bookends import with_bookends
from tracelens_infer.steps.call_tree import build_call_tree
from tracelens_infer.steps.candidates import Candidate, Grade
from tracelens_infer.steps.coverage import graded
from tracelens_infer.steps.detect_call_tree import call_tree_candidates
from tracelens_infer.steps.detect_device import device_candidates
from tracelens_infer.steps.detect_families import family_candidates, placed_family
from tracelens_infer.steps.detect_top_level import top_level_candidates
from tracelens_infer.steps.landmarks import find_landmarks
from tracelens_infer.trace.columns import Role, Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["LOOKED_FOR", "find_by_cascade"]

LOOKED_FOR = (
    "labels of one family (four or more), a call that repeats in the call tree, ops that recur once an iteration, "
    "and kernels that do so on a stream"
)
"""What a message says was looked for, where none of it was found."""


def find_by_cascade(trace: Trace, work: DeviceWork) -> list[Candidate]:
    """Every candidate, the preferred one first; the others with the reason why they were rejected.

    A label's family is preferred where it spans the iterations that the structure shows, then the outermost call that
    repeats, then the sequence of ops, then that of kernels. None is chosen (all carry a reason, and a grade of
    NOT_SPLITTABLE) where what repeats cannot be told from the layers of a single step.
    """
    structures = [_judged(trace, work, candidate) for candidate in _structures(trace, work)]
    sound = [candidate for candidate in structures if not candidate.rejected]
    sound.sort(key=lambda candidate: candidate.grade is not Grade.SPLITTABLE)
    structure = sound[0] if sound else None
    families = [placed_family(graded(trace, work, family), structure) for family in family_candidates(trace)]
    families = [_without_grade(family) if family.rejected else family for family in families]
    ranked = [*(family for family in families if not family.rejected), *sound]
    ranked.sort(key=lambda candidate: candidate.grade is not Grade.SPLITTABLE)
    if ranked:
        wider = with_bookends(trace, work, ranked[0])
        if wider is not None:
            ranked.insert(0, graded(trace, work, wider))
    others = [candidate for candidate in (*structures, *families) if candidate.rejected]
    return [*ranked[:1], *(_second(ranked[0], candidate) for candidate in ranked[1:]), *others]


def _structures(trace: Trace, work: DeviceWork) -> list[Candidate]:
    """What the call tree, else the ops, else the kernels repeat. Names are read for no more than is needed."""
    if len(work.row) and not work.linked.any():
        return device_candidates(trace, work)
    tree = build_call_tree(trace, work)
    has_frames = len(trace.rows(Role.PYTHON)) > 0
    found = call_tree_candidates(trace, tree, find_landmarks(trace, work, tree)) if has_frames else []
    if any(not candidate.rejected for candidate in found):
        return found
    disputed = next((candidate.disputed for candidate in found if candidate.disputed), "")
    return [*found, *(replace(candidate, disputed=disputed) for candidate in top_level_candidates(trace, work, tree))]


def _judged(trace: Trace, work: DeviceWork, candidate: Candidate) -> Candidate:
    judged = graded(trace, work, candidate)
    return _without_grade(judged) if candidate.rejected else judged


def _without_grade(candidate: Candidate) -> Candidate:
    """What is no iteration, for another reason than coverage, is never splittable."""
    return replace(candidate, grade=Grade.NOT_SPLITTABLE)


def _second(chosen: Candidate, other: Candidate) -> Candidate:
    if chosen.detector.endswith(other.detector):
        return replace(other, rejected=f"{chosen.detector} holds what runs around the iterations as well")
    if other.grade is not Grade.SPLITTABLE and chosen.grade is Grade.SPLITTABLE:
        return replace(other, rejected=f"explains {other.explained_share:.0%}, {chosen.detector} more")
    return replace(other, rejected=f"{chosen.detector} is preferred: it is further out, or labelled")
