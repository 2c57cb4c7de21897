"""How long does a step take, by its kind and by the number of requests in it?

python examples/step_times.py [TRACE]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from tracelens_infer import StepKind, TracelensError, analyze_steps

SAMPLE = Path(__file__).resolve().parent.parent / "traces" / "vllm_cpu_mixed_60steps.json.gz"


def main() -> None:
    """Read the trace and print a table."""
    steps = analyze_steps(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE).steps
    clock = "device" if steps.has_device_work else "host"
    durations_ms: defaultdict[tuple[StepKind, int], list[float]] = defaultdict(list)
    for step in steps.steps:
        durations_ms[step.kind, step.requests].append(step.duration_ns / 1e6)

    print(f"{'kind':<16} {'requests':>8} {'steps':>6} {'median':>10}   ({clock} times)")
    for (kind, requests), values in sorted(durations_ms.items()):
        print(f"{kind:<16} {requests:>8} {len(values):>6} {median(values):>7.2f} ms")


if __name__ == "__main__":
    try:
        main()
    except TracelensError as error:  # what it is about, the reason, the next action: a line each
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
