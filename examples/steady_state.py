"""Find the steady state of a trace, write it out, and say what is in each window.

    python examples/steady_state.py [TRACE [FOLDER]]

Without arguments: the mixed sample trace, into a folder that is removed again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tracelens_infer import SplitOptions, TracelensError, Workload, split_trace

SAMPLE = Path(__file__).resolve().parent.parent / "traces" / "vllm_cpu_mixed_60steps.json.gz"


def show(trace: Path, folder: Path) -> None:
    """Split ``trace`` into ``folder`` and print its windows."""
    # What the load generator was started with: it guides the choice and gives the mix to expect.
    workload = Workload(concurrency=8, output_tokens=128, length_ratio=0.5)
    result = split_trace(trace, folder, SplitOptions(workload=workload))

    state = result.steady_state
    if state is None:
        raise SystemExit("no steady state was asked for")
    print(f"{len(result.analysis.steps.steps)} steps, at most {state.peak_requests} requests at once")
    for window in state.windows:
        kinds = ", ".join(f"{count} {kind}" for kind, count in window.composition.items())
        print(f"{window.kind}: steps {window.first} to {window.last - 1} ({kinds})")
        if window.mix_observed is not None and window.mix_expected is not None:
            print(f"  {window.mix_observed:.1%} of them hold a prefill, {window.mix_expected:.1%} expected")
    for output in result.outputs:
        print(f"{output.file}: {output.events:,} events")
    for note in result.notes:
        print(f"{note.level}: {note.text}")


def main() -> None:
    """Take the trace and the folder from the command line."""
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    if len(sys.argv) > 2:
        show(trace, Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        show(trace, Path(scratch) / "out")


if __name__ == "__main__":
    try:
        main()
    except TracelensError as error:  # what it is about, the reason, the next action: a line each
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
