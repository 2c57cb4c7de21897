"""Which kernels computed each step's attention, which layer and group of layers is each, and how long did it take?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention_layers import grouped, layered
from tracelens_infer.roofline.measured_attention import (
    SERVES,
    AttentionCalls,
    AttentionGroup,
    GroupedBy,
    GroupTimes,
)
from tracelens_infer.roofline.model import ModelShape
from tracelens_infer.steps.analyze import StepAnalysis
from tracelens_infer.steps.attention_ops import Serves
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.steps.host_ops import host_ops
from tracelens_infer.steps.kernel_families import KernelFamily, NamedRows, named_rows
from tracelens_infer.trace.columns import Int64Array

__all__ = ["SERVES", "AttentionCalls", "AttentionGroup", "GroupTimes", "GroupedBy", "attention_calls"]

_BOTH, _CONTEXT, _GENERATION = map(SERVES.index, (Serves.BOTH, Serves.CONTEXT, Serves.GENERATION))
_FAMILIES = (
    KernelFamily.ATTENTION,
    KernelFamily.ATTENTION_COMBINE,
    KernelFamily.ATTENTION_INDEX,
    KernelFamily.LINEAR_ATTENTION,
)

# Kernels named after one phase; what has neither word serves both (unified Triton attention, FlashAttention).
_GENERATION_NAME = re.compile(
    r"decode|_kernel_stage[12]|paged_attention_(v[12]|ll4mi)|splitkv_mla|flash_?mla|mla_a\d+w\d+|\bmmha|masked_multihead"
    r"|(?<![a-z])pa_(bf16|fp16|fp8|i8|fwd|ragged)|xqa",
    re.IGNORECASE,
)
_CONTEXT_NAME = re.compile(r"prefill|^_fwd_kernel$|context_attention|varlen_fwd|mla_pfl", re.IGNORECASE)


def attention_calls(
    analysis: StepAnalysis, *, model: ModelShape | None = None, named: NamedRows | None = None
) -> AttentionCalls:
    """Which kernels computed each step's attention, and how long did each layer take?

    Attention time of a layer is its main kernel and the kernels that merge its parts; those follow it. ``named`` spares
    a second reading of names: it has to hold the rows of all device work that belongs to a step. Layers are told apart
    by kernel name, else by the order of ``model.layers``, else by time.
    """
    on_device = len(analysis.work.row) > 0
    pieces = _device_pieces(analysis, named) if on_device else _host_pieces(analysis)
    steps = len(analysis.steps.steps)
    calls = _joined(pieces, steps, on_device=on_device)
    if on_device and not (analysis.step_work.step >= 0).any():
        # Ops of the host only launch here: their times are not attention's.
        text = "No device work could be attributed to a step: how long attention took is not known."
        calls = replace(calls, notes=(*calls.notes, Note("warning", "attention_unattributed", text, steps)))
    calls = replace(calls, serves=_serves(analysis, calls))
    return grouped(layered(calls, model), model)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Work of attention in order of steps and launches."""

    named: NamedRows
    step: Int64Array
    duration_ns: Int64Array


def _device_pieces(analysis: StepAnalysis, named: NamedRows | None) -> _Pieces:
    work, step = analysis.work, analysis.step_work.step
    owned = np.flatnonzero((step >= 0) & work.timed)
    rows = work.row[owned]
    named = named_rows(analysis.trace, rows) if named is None else named.of(rows)
    own = owned[named.is_any(*_FAMILIES)]
    # The order of launches is that of layers; within a graph's replay, which has one launch, that of starts.
    own = own[np.lexsort((work.start_ns[own], work.launch_ns[own], step[own]))]
    return _Pieces(named.of(work.row[own]), step[own], (work.end_ns - work.start_ns)[own])


def _host_pieces(analysis: StepAnalysis) -> _Pieces:
    """Without a device: the outermost ops of attention, less what they write to the cache."""
    ops = host_ops(analysis.trace)
    at = ops.outermost(*_FAMILIES)
    writes = np.where(ops.named.is_any(KernelFamily.KV_WRITE), ops.self_ns, 0)
    duration = (ops.end_ns - ops.start_ns - ops.within(writes))[at]
    step = step_numbers(analysis.step_work.candidate, ops.start_ns[at])
    order = np.lexsort((ops.start_ns[at], step))
    order = order[step[order] >= 0]
    name = NamedRows(ops.named.row[at], ops.named.name[at], ops.named.names, ops.named.families)
    return _Pieces(name.of(name.row[order]), step[order], duration[order])


def _joined(pieces: _Pieces, steps: int, *, on_device: bool) -> AttentionCalls:
    """Main kernels with the time of their helpers: the last main kernel before a merge, the next after an indexer."""
    named, step, duration = pieces.named, pieces.step, pieces.duration_ns
    is_main = named.is_any(KernelFamily.ATTENTION)
    main = np.flatnonzero(is_main)
    combine_ns = np.zeros(len(main), dtype=np.int64)
    before = np.cumsum(is_main)
    orphans = 0
    for family, owner in ((KernelFamily.ATTENTION_COMBINE, before - 1), (KernelFamily.ATTENTION_INDEX, before)):
        helper = np.flatnonzero(named.is_any(family))
        place = owner[helper]
        valid = (place >= 0) & (place < len(main))
        valid[valid] = step[main[place[valid]]] == step[helper[valid]]
        np.add.at(combine_ns, place[valid], duration[helper[valid]])
        orphans += int((~valid).sum())
    linear_ns = np.zeros(steps, dtype=np.int64)
    linear = named.is_any(KernelFamily.LINEAR_ATTENTION)
    np.add.at(linear_ns, step[linear], duration[linear])
    used, name = np.unique(named.name[main], return_inverse=True)
    notes = []
    if orphans:
        text = "Kernels that merge parts of attention without an attention kernel in their step were left out."
        notes.append(Note("warning", "combine_without_attention", text, orphans))
    none = np.zeros(len(main), dtype=np.int64)
    return AttentionCalls(
        row=named.row[main],
        step=step[main],
        serves=none,
        layer=none,
        group=none,
        draft=np.zeros(len(main), dtype=np.bool_),
        main_ns=duration[main],
        combine_ns=combine_ns,
        name=name,
        names=tuple(named.names[number] for number in used.tolist()),
        groups=(),
        grouped_by=None,
        layers=None,
        linear_ns=linear_ns,
        on_device=on_device,
        notes=tuple(notes),
    )


def _serves(analysis: StepAnalysis, calls: AttentionCalls) -> Int64Array:
    """Names tell phases apart only where a step runs both: what runs in a step of one phase serves that phase.

    In a step of both phases with kernels of one name, those serve both, whatever they are called: FlashInfer computes
    decodes with its prefill kernel where that is faster.
    """
    by_name = np.full(len(calls.names), _BOTH, dtype=np.int64)
    for number, name in enumerate(calls.names):
        if _GENERATION_NAME.search(name):
            by_name[number] = _GENERATION
        elif _CONTEXT_NAME.search(name):
            by_name[number] = _CONTEXT
    serves = by_name[calls.name]
    steps = analysis.steps.steps
    phases = np.array([(bool(s.context_requests), bool(s.generation_requests)) for s in steps], dtype=np.bool_)
    phases = phases.reshape(len(steps), 2)
    has_context, has_generation = phases[calls.step, 0], phases[calls.step, 1]
    named_so = np.zeros((len(steps), len(SERVES)), dtype=np.bool_)
    named_so[calls.step, serves] = True
    both_named = (named_so[:, _CONTEXT] & named_so[:, _GENERATION])[calls.step]
    serves = np.where(has_context & has_generation & ~both_named, _BOTH, serves)
    serves = np.where(has_context & ~has_generation, _CONTEXT, serves)
    return np.where(has_generation & ~has_context, _GENERATION, serves)
