"""Is a trace one of LLM inference, though no label of an engine says so?"""

from __future__ import annotations

import re

import numpy as np

from tracelens_infer.steps.attention_ops import ATTENTION_OPS
from tracelens_infer.trace.columns import MISSING, Role, Trace
from tracelens_infer.trace.reader import event_names

__all__ = ["infer_llm"]

_SAMPLE = 20_000
"""Names are read of so many events a kind, from the middle of the trace: several steps of any engine seen."""
_ENGINE = re.compile(
    r"(?:^|/)(?:vllm|sglang|atom|lmdeploy|tensorrt_llm|vllm_ascend)/|(?:^|/)transformers/generation/"
    r"|^(?:vllm|sglang|sgl_kernel|sglang_profiler)::",
)
_ENGINE_PROCESS = re.compile(rb"vllm::|sglang::", re.IGNORECASE)
_SERVING_OPS = frozenset(name for name in ATTENTION_OPS if not name.startswith("aten::"))


def infer_llm(trace: Trace) -> bool:
    """Does this trace show an LLM being served? True where an engine's process, frames or attention ops are seen.

    Attention alone is no sign: diffusion and training have it too. A sample from the trace's middle is read.
    """
    if trace.metadata.engine is not None:
        return True
    if any(_ENGINE_PROCESS.search(text) for text in trace.metadata_texts):
        return True
    for role in (Role.HOST_OP, Role.PYTHON):
        rows = trace.rows(role)
        starts = trace.columns.start_ns[rows]
        rows = rows[starts != MISSING][np.argsort(starts[starts != MISSING], kind="stable")]
        first = max(0, (len(rows) - _SAMPLE) // 2)
        names = event_names(trace, rows[first : first + _SAMPLE])
        if any(name in _SERVING_OPS or _ENGINE.search(name) for name in set(names.values())):
            return True
    return False
