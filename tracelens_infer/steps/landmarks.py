"""What runs once an iteration, whoever calls it? The second opinion on which call of the call tree is one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens_infer.steps.call_tree import CallTree
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.op_sequence import SAMPLE, has_optimizer, level_of, op_sequence
from tracelens_infer.trace.columns import Int64Array, Trace
from tracelens_infer.trace.launches import DeviceWork

__all__ = ["AGREEMENT", "Agreement", "Landmarks", "find_landmarks"]

AGREEMENT = 0.9
"""Two ways that share no evidence, the calls and the ops, name the same iterations: nine in ten, since the recording
cuts the first and the last of them differently. On real traces with stacks, labels hidden, it was 0.97 and more."""

_WORKS = 0.25  # of a typical one's pieces: fewer, and no landmark, is an idle step or one that the recording cut off


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well do the windows of a candidate fit the iterations that the ops show?

    ``share``: of the iterations (of the windows, where there are more), those that lie one to one. ``held``: how many
    iterations a window holds, as a rule. ``iterations``: how many there are.
    """

    share: float
    held: float
    iterations: int


@dataclass(frozen=True, slots=True)
class Landmarks:
    """One op (kernel) of each iteration, in the middle of a long trace, in all of a short one.

    Attributes:
        times_ns: when each was asked for, on the host.
        all_ns: the same of everything that ran in that part of the trace.
        is_part: there is more of the trace than that.
        proven: they are optimizers: steps of training end with one, whatever the calls look like.
    """

    times_ns: Int64Array
    all_ns: Int64Array
    is_part: bool
    proven: bool

    def agreement(self, candidate: Candidate) -> Agreement:
        """Is there one of them in each of the candidate's windows that lie in this part of the trace?"""
        starts = np.array([boundary.start_ns for boundary in candidate.boundaries], dtype=np.int64)
        ends = np.array([boundary.tile_end_ns for boundary in candidate.boundaries], dtype=np.int64)
        whole = (starts >= self.all_ns[0]) & (ends <= self.all_ns[-1]) if self.is_part else starts <= ends
        number = step_numbers(candidate, self.times_ns)
        number = number[(number < 0) | whole[number]]
        held = np.bincount(number[number >= 0], minlength=len(starts))
        around = step_numbers(candidate, self.all_ns)
        pieces = np.bincount(around[around >= 0], minlength=len(starts))
        working = whole & (pieces > 0)
        working &= (held > 0) | (pieces >= _WORKS * (float(np.median(pieces[working])) if working.any() else 0.0))
        matched = int((held[working] == 1).sum())
        usual = held[working & (held > 0)]
        return Agreement(
            share=matched / max(len(number), int(working.sum()), 1),
            held=float(np.median(usual)) if len(usual) else 0.0,
            iterations=len(number),
        )


def find_landmarks(trace: Trace, work: DeviceWork, tree: CallTree) -> Landmarks | None:
    """Which op recurs once an iteration? None where no level of recurrence is regular."""
    sequence = op_sequence(trace, work, tree, most=SAMPLE)
    level = level_of(sequence) if len(sequence.row) else None
    if level is None:
        return None
    middle = level.positions[len(level.positions) // 2]  # far from where one iteration ends and the next one begins
    proven = has_optimizer(sequence, level)
    return Landmarks(sequence.start_ns[middle], sequence.start_ns, len(sequence.row) == SAMPLE, proven)
