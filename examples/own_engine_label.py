"""Teach the library the step label of an engine it does not know.

    python examples/own_engine_label.py

The engine is made up: it marks a step with ``tick p=1 d=7``, one prefill and seven decodes.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from tracelens_infer import AttentionLoad, PhaseLoad, StepAnnotation, StepFormat, analyze_steps, register_format

LABEL = re.compile(r"tick p=([0-9]{1,18}) d=([0-9]{1,18})")


def parse_tick(text: str) -> StepAnnotation | None:
    """What does a label say? None for every text that is not, from end to end, a label of this engine."""
    match = LABEL.fullmatch(text)
    if match is None:
        return None
    prefills, decodes = int(match[1]), int(match[2])
    # Tokens are not in the label, so they stay None: what a label does not tell is never guessed.
    load = AttentionLoad(context=PhaseLoad(prefills), generation=PhaseLoad(decodes))
    return StepAnnotation("tick", load, None, text)


def write_trace(path: Path) -> None:
    """Write a trace of four steps, a millisecond each, with one kernel in every step."""
    events = []
    for number, label in enumerate(("tick p=2 d=0", "tick p=0 d=2", "tick p=1 d=2", "tick p=0 d=3")):
        start = 1000.0 * (number + 1)
        host, device = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}
        args = {"correlation": number + 1}
        events += [
            {"ph": "X", "cat": "user_annotation", "name": label, "ts": start, "dur": 900.0, **host},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": start + 10, "dur": 5.0, **host, "args": args},
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": start + 20, "dur": 700.0, **device, "args": args},
        ]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def main() -> None:
    """Register the label, read a trace that uses it, print its steps."""
    register_format(StepFormat("tick", parse_tick, prefixes=("tick ",)))
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.json"
        write_trace(trace)
        analysis = analyze_steps(trace)
    print(f"found by {analysis.iterations.chosen.detector}")
    for step in analysis.steps.steps:
        print(f"{step.annotation}: {step.kind}, {step.requests} requests, {step.duration_ns / 1000:,.0f} us")


if __name__ == "__main__":
    main()
