"""Make a trace as vLLM's profiler would write it, of any size: ``python -m tests.benchmarks.make_trace OUT.json.gz``.

The text is laid out as Kineto does: labels and ops, then Python frames, then runtime calls, kernels and flows, then
metadata. Steps that only decode replay one graph. Equal options give equal bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from tests.benchmarks import model
from tests.benchmarks.closed_loop import Client, step_loads
from tracelens_infer.steps.annotation import AttentionLoad, vllm_text

PROCESS, DEVICE, STREAM = 4711, 0, 7
BASE_US = 2_468_013_579.0  # the first moment, since the header's base time
FIRST_OP_US = 280.0  # from a step's start to its first op
OP_US, EAGER_LAUNCH_US, REPLAY_US = 14.0, 5.2, 240.0  # host time of an op, of a launch, of a graph's launch
LAUNCH_TO_WORK_US = 6.0
KERNEL_GAP_US = 1.1
AFTER_LAST_US = 5_000.0
BUFFER_BYTES = 1 << 20
CLOSING_EVENTS = 11  # nine of metadata, the profiler's span, a marker

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "record_shapes": 1,
  "with_stack": 1,
  "vllm_version": "0.32.0",
  "trace_id": "0B5E55ED0B5E55ED0B5E55ED0B5E55ED",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1767189312000000000,
  "traceEvents": ["""
SPAN = (
    '\n  {\n    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,\n    "ts": %.3f, "dur": %.3f,'
    '\n    "args": {\n      %s\n    }\n  },'
)
FLOW = '\n  {\n    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,\n    "cat": "ac2g", "name": "ac2g"%s\n  },'
METADATA = (
    '\n  {\n    "name": "%s", "ph": "M", "ts": %.3f, "pid": %s, "tid": %s,\n    "args": {\n      "%s": %s\n    }\n  },'
)
RUNTIME_ARGS = '"External id": %d,"cbid": %d, "correlation": %d'
KERNEL_ARGS = (
    '"External id": %d,      "queued": 0, "device": 0, "context": 1,      "stream": 7, "correlation": %d,      '
    '"registers per thread": %d,      "shared memory": 0,      "blocks per SM": %.6f,      "warps per SM": %.6f,      '
    '"grid": [%d, 1, 1],      "block": [%d, 1, 1],      "est. achieved occupancy %%": %d'
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large is a step: layers of the model (nine kernels each), and Python frames?"""

    layers: int = 20
    frames: int = 200


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """When does a step run, and with which numbers do its events begin?"""

    load: AttentionLoad
    start_us: float
    host_us: float
    speed: float  # factor on kernel times
    external_id: int
    correlation: int
    frame_id: int
    event_id: int

    @property
    def tokens(self) -> int:
        return (self.load.context.query_tokens or 0) + (self.load.generation.query_tokens or 0)

    @property
    def eager(self) -> bool:
        """Does each kernel have a launch of its own? Graphs are captured for decodes only."""
        return self.load.context.requests > 0

    @property
    def kind(self) -> str:
        if not self.eager:
            return "decode_only"
        return "prefill_decode" if self.load.generation.requests else "prefill_only"


class Writer:
    """Renders planned steps, section by section."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.kernels = model.kernels(shape.layers)
        self.calls = model.python_calls(shape.frames)
        self.ops = lru_cache(maxsize=64)(lambda tokens, eager: tuple(model.host_ops(shape.layers, tokens, eager=eager)))

    # -- plan ---------------------------------------------------------------------------------------------------

    def plan(self, loads: Iterator[AttentionLoad], rng: random.Random, limit_bytes: float | None) -> list[PlannedStep]:
        """When does each step run? Ends with the loads, or where the trace is as large as it may be."""
        steps: list[PlannedStep] = []
        step_bytes: dict[bool, int] = {}
        now, size = BASE_US + 750.0, 0
        external, correlation, frame, event = 1, 100, 1, 0
        for load in loads:
            if limit_bytes is not None and size >= limit_bytes:
                break
            eager = load.context.requests > 0
            launches = len(self.kernels) if eager else 1
            op_count = len(self.ops(1, eager))
            host = 2 * FIRST_OP_US + op_count * OP_US + launches * EAGER_LAUNCH_US + rng.uniform(300, 700)
            step = PlannedStep(load, now, host, rng.uniform(0.95, 1.05), external, correlation, frame, event)
            steps.append(step)
            external += 1 + op_count
            correlation += 1 + launches
            frame += self.shape.frames
            event += 1 + op_count + self.shape.frames
            if eager not in step_bytes:
                step_bytes[eager] = sum(len("".join(part(step))) for part in (self.host, self.frames, self.device))
            size += step_bytes[eager]
            device_end = self.kernel_spans(step)[-1]
            now = max(now + host, device_end[0] + device_end[1]) + rng.uniform(80, 220)
        return steps

    def kernel_spans(self, step: PlannedStep) -> list[tuple[float, float]]:
        """Start and duration of every kernel: one after another, none before its launch."""
        spans = []
        kilotokens = max(step.tokens - 64, 0) / 1000
        free = 0.0
        for number, kernel in enumerate(self.kernels):
            start = max(free, self.launch_us(step, number) + LAUNCH_TO_WORK_US)
            ripple = 0.97 + (number * 37 % 11) / 160
            duration = (kernel.base_us + kernel.us_per_kilotoken * kilotokens) * step.speed * ripple
            spans.append((start, duration))
            free = start + duration + KERNEL_GAP_US
        return spans

    def launch_us(self, step: PlannedStep, number: int) -> float:
        """When does the host launch kernel ``number``? All at once where a graph is replayed."""
        begins = step.start_us + FIRST_OP_US + OP_US
        return begins + number * EAGER_LAUNCH_US if step.eager else begins

    # -- sections -----------------------------------------------------------------------------------------------

    def host(self, step: PlannedStep) -> list[str]:
        """The step's label and its ops."""
        label = f'"External id": {step.external_id},"Record function id": 0, "Ev Idx": {step.event_id}'
        start, name = step.start_us, vllm_text(step.load)
        events = [SPAN % ("user_annotation", name, PROCESS, PROCESS, start, step.host_us, label)]
        ops = self.ops(step.tokens, step.eager)
        each = (step.host_us - 2 * FIRST_OP_US) / len(ops)
        for number, (name, op_args) in enumerate(ops, 1):
            ids = f'"External id": {step.external_id + number},"Record function id": 0'
            args = f'{ids}, {op_args}, "Ev Idx": {step.event_id + number}'
            at = start + FIRST_OP_US + (number - 1) * each
            events.append(SPAN % ("cpu_op", name, PROCESS, PROCESS, at, each * 0.7, args))
        return events

    def frames(self, step: PlannedStep) -> list[str]:
        """The step's Python frames, in chains of calls."""
        events = []
        first_event = step.event_id + 1 + len(self.ops(1, step.eager))
        chains = max(1, -(-self.shape.frames // model.CALL_DEPTH))
        each = step.host_us / chains
        for number, name in enumerate(self.calls):
            chain, depth = divmod(number, model.CALL_DEPTH)
            own = step.frame_id + number
            parent = own - 1 if depth else 0
            at, lasts = step.start_us + chain * each + depth * 0.4, each - depth - 1.5
            args = f'"Python parent id": {parent}, "Python id": {own}, "Ev Idx": {first_event + number}'
            events.append(SPAN % ("python_function", name, PROCESS, PROCESS, at, max(lasts, 0.2), args))
        return events

    def device(self, step: PlannedStep) -> list[str]:
        """Launches, kernels, the arrows between them, and the label that the profiler draws on the stream."""
        spans = self.kernel_spans(step)
        events = self._copy(step)
        first = step.correlation + 1
        ops = len(self.ops(1, step.eager))
        if not step.eager:
            events += _launch("cudaGraphLaunch", step.external_id + 3, 311, first, self.launch_us(step, 0), REPLAY_US)
        for number, (kernel, (start, duration)) in enumerate(zip(self.kernels, spans, strict=True)):
            external, correlation = step.external_id + 3, first
            if step.eager:
                external, correlation = step.external_id + 1 + number * ops // len(spans), first + number
                at = self.launch_us(step, number)
                events += _launch("cudaLaunchKernel", external, 211, correlation, at, 0.8 * EAGER_LAUNCH_US)
            grid, threads = step.tokens, kernel.threads
            args = KERNEL_ARGS % (
                *(external, correlation, kernel.registers, grid / 132, grid * threads / 4224),
                *(grid, threads, min(99, grid)),
            )
            events.append(SPAN % ("kernel", kernel.name, DEVICE, STREAM, start, duration, args))
            if step.eager or number == 0:
                events.append(FLOW % ("f", correlation, DEVICE, STREAM, start, ', "bp": "e"'))
        begin, end = spans[0][0], spans[-1][0] + spans[-1][1]
        label = f'"External id": {step.external_id}'
        events.append(SPAN % ("gpu_user_annotation", vllm_text(step.load), DEVICE, STREAM, begin, end - begin, label))
        return events

    def _copy(self, step: PlannedStep) -> list[str]:
        """The step's token ids go to the device before its first op."""
        at, external, correlation = step.start_us + 40, step.external_id + 1, step.correlation
        args = (
            f'"External id": {external},      "device": 0, "context": 1,      "stream": 7, "correlation": {correlation}'
            f',      "bytes": {4 * step.tokens}, "memory bandwidth (GB/s)": 0.5'
        )
        copy = SPAN % ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", DEVICE, STREAM, at + 8, 1.3, args)
        arrow = FLOW % ("f", correlation, DEVICE, STREAM, at + 8, ', "bp": "e"')
        return [*_launch("cudaMemcpyAsync", external, 41, correlation, at, 6.5), copy, arrow]


def _launch(name: str, external: int, callback: int, correlation: int, at: float, lasts: float) -> list[str]:
    args = RUNTIME_ARGS % (external, callback, correlation)
    return [
        SPAN % ("cuda_runtime", name, PROCESS, PROCESS, at, lasts, args),
        FLOW % ("s", correlation, PROCESS, PROCESS, at, ""),
    ]


def closing(end_us: float) -> str:
    """Metadata, the profiler's own span and its markers, and the end of the file."""
    rows = (
        ("process_name", PROCESS, 0, "name", '"VLLM::EngineCore"'),
        ("process_labels", PROCESS, 0, "labels", '"CPU"'),
        ("process_sort_index", PROCESS, 0, "sort_index", PROCESS),
        ("process_name", DEVICE, 0, "name", '"VLLM::EngineCore"'),
        ("process_labels", DEVICE, 0, "labels", '"GPU 0"'),
        ("process_sort_index", DEVICE, 0, "sort_index", 5_000_000),
        ("thread_name", DEVICE, STREAM, "name", '"stream 7 "'),
        ("thread_name", PROCESS, PROCESS, "name", f'"thread {PROCESS} (VLLM::EngineCor)"'),
        ("process_sort_index", '"Spans"', 0, "sort_index", 536_870_912),
    )
    metadata = "".join(METADATA % (name, BASE_US, pid, tid, key, value) for name, pid, tid, key, value in rows)
    span = (
        f'\n  {{\n    "ph": "X", "cat": "Trace", "ts": {BASE_US:.3f}, "dur": {end_us - BASE_US:.3f},\n    '
        '"pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)",\n    "args": {\n      '
        '"Op count": 0\n    }\n  },'
    )
    marker = (
        '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", '
        f'"ts": {end_us + 100:.3f}\n  }}'
    )
    return f'{metadata}{span}{marker}\n  ],\n  "traceName": "trace.json"\n}}\n'


def write(file: BinaryIO, writer: Writer, steps: list[PlannedStep]) -> tuple[int, int]:
    """Write the trace; returns how many bytes and events it holds."""
    size = file.write(HEADER.encode())
    count = CLOSING_EVENTS
    sections: tuple[Callable[[PlannedStep], list[str]], ...] = (writer.host, writer.frames, writer.device)
    for section in sections:
        for step in steps:
            events = section(step)
            count += len(events)
            size += file.write("".join(events).encode())
    size += file.write(closing(steps[-1].start_us + steps[-1].host_us + AFTER_LAST_US).encode())
    return size, count


def make_trace(
    path: Path, client: Client, shape: Shape, megabytes: float | None = None, seed: int = 0
) -> dict[str, Any]:
    """Write a trace to ``path``, gzipped, and say what is in it: bytes, events, steps by kind.

    It ends with the client's last prompt, or with the first step past this many ``megabytes`` of JSON.
    """
    from isal import igzip

    rng = random.Random(seed)
    writer = Writer(shape)
    steps = writer.plan(step_loads(client, rng), rng, None if megabytes is None else megabytes * 1e6)
    with path.open("wb") as raw:
        # No name and no time in the file, so that equal options give equal bytes.
        packed = igzip.IGzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0)  # type: ignore[no-untyped-call]
        with packed, io.BufferedWriter(packed, BUFFER_BYTES) as file:
            size, events = write(file, writer, steps)
    kinds = Counter(step.kind for step in steps)
    return {"bytes": size, "events": events, "steps": len(steps), "steps_by_kind": dict(kinds)}


def main(arguments: list[str] | None = None) -> None:
    """Read the options, make the trace, print what is in it as JSON."""
    client, shape = Client(), Shape()
    parser = argparse.ArgumentParser(description="Make a vLLM trace of any size.")
    parser.add_argument("output", type=Path, help="the .json.gz to write")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--mb", type=float, help="megabytes of JSON, from the middle of a run")
    size.add_argument("--prompts", type=int, help="a whole run of so many requests, with ramp-up and ramp-down")
    parser.add_argument("--conc", type=int, default=client.concurrency, help="requests at once")
    parser.add_argument("--isl", type=int, default=client.prompt_tokens, help="prompt tokens")
    parser.add_argument("--osl", type=int, default=client.output_tokens, help="most output tokens")
    parser.add_argument("--ratio", type=float, default=client.length_ratio, help="shortest output over longest")
    parser.add_argument("--layers", type=int, default=shape.layers, help="layers of the model, nine kernels each")
    parser.add_argument("--frames", type=int, default=shape.frames, help="Python frames a step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    client = Client(
        concurrency=options.conc,
        prompt_tokens=options.isl,
        output_tokens=options.osl,
        length_ratio=options.ratio,
        prompts=options.prompts,
        warm=options.prompts is None,
    )
    made = make_trace(options.output, client, Shape(options.layers, options.frames), options.mb, options.seed)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
