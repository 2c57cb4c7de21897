"""Small traces for tests: a builder that writes the JSON a profiler would, from one line a step."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens_infer.steps.analyze import StepAnalysis, steps_of
from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.reader import read_trace

HOST = 100  # process, and its main thread
DEVICE = 0
STREAM = 7

SEPARATOR = re.compile(r"[\s,]*")

DECODE = "step[DECODE bs=8]"
EXTEND = "step[EXTEND bs=2 toks=512]"


def vllm(context: int = 0, generation: int = 0, *, chunk: int = 64, kv: int = 500) -> str:
    """Write vLLM's detailed label of a step: ``context`` prefills of ``chunk`` tokens, ``generation`` decodes."""
    prefill = f"sq{context * chunk}sk{context * chunk}sqsq{context * chunk**2}sqsk{context * chunk**2}"
    decode = f"sq{generation}sk{generation * kv}sqsq{generation}sqsk{generation * kv}"
    tokens = context * chunk + generation
    return f"execute_{tokens}_context_{context}({prefill})_generation_{generation}({decode})"


def vllm_native(context: int = 0, generation: int = 0) -> str:
    """Write vLLM's label without sums."""
    return f"execute_context_{context}({context * 64})_generation_{generation}({generation})"


@dataclass(frozen=True)
class Work:
    """One launch at ``launch`` and the ``kernels`` it owns, one after another from ``start`` on; all times in us."""

    launch: float
    start: float
    duration: float
    kernels: int = 1
    stream: int = STREAM


class TraceMaker:
    """Collects events, then writes or reads them. Times are microseconds; every method returns what it made."""

    def __init__(self, header: Mapping[str, Any] | None = None, *, process: int = HOST) -> None:
        self.process = process
        self.header = header or {}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    # -- events -------------------------------------------------------------------------------------------------

    def event(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Add an event as it is."""
        self.events.append(fields)
        return fields

    def span(
        self,
        category: str,
        name: str,
        start: float,
        duration: float | None,
        *,
        process: int | str | None = None,
        thread: int | str | None = None,
        **args: Any,  # noqa: ANN401 - JSON
    ) -> dict[str, Any]:
        """Add a complete event; without a duration where that is None."""
        process = self.process if process is None else process
        fields: dict[str, Any] = {"ph": "X", "cat": category, "name": name, "pid": process}
        fields |= {"tid": process if thread is None else thread, "ts": start}
        if duration is not None:
            fields["dur"] = duration
        return self.event(**fields, args=args)

    def label(self, name: str, start: float, duration: float | None, **where: Any) -> dict[str, Any]:  # noqa: ANN401
        """Add a host annotation."""
        return self.span("user_annotation", name, start, duration, **where)

    def op(self, name: str, start: float, duration: float, **where: Any) -> dict[str, Any]:  # noqa: ANN401
        """Add an operator."""
        return self.span("cpu_op", name, start, duration, **where)

    def frame(self, name: str, start: float, duration: float, **where: Any) -> dict[str, Any]:  # noqa: ANN401
        """Add a Python frame."""
        return self.span("python_function", name, start, duration, **where)

    def device_label(self, name: str, start: float, duration: float, *, stream: int = STREAM) -> dict[str, Any]:
        """Add the label that the profiler draws on a stream."""
        return self.span("gpu_user_annotation", name, start, duration, process=DEVICE, thread=stream)

    def kernel(
        self, start: float, duration: float, *, correlation: int | None = None, stream: int = STREAM, name: str = "k"
    ) -> dict[str, Any]:
        """Add device work."""
        args = {"device": DEVICE, "stream": stream}
        if correlation is not None:
            args["correlation"] = correlation
        return self.span("kernel", name, start, duration, process=DEVICE, thread=stream, **args)

    def arrow(self, flow_id: int, category: str, start: float, end: float, **where: Any) -> list[dict[str, Any]]:  # noqa: ANN401
        """Add both ends of an arrow: on the host, and at ``end`` on the device unless ``where`` says otherwise."""
        where = {"pid": DEVICE, "tid": STREAM} | where
        common = {"cat": category, "name": category, "id": flow_id}
        return [
            self.event(ph="s", **common, pid=self.process, tid=self.process, ts=start),
            self.event(ph="f", bp="e", **common, **where, ts=end),
        ]

    def work(self, work: Work, **where: Any) -> int:  # noqa: ANN401
        """Add a launch, its kernels and the arrow between them; returns the correlation."""
        self._correlation += 1
        name = "cudaLaunchKernel" if work.kernels == 1 else "cudaGraphLaunch"
        self.span("cuda_runtime", name, work.launch, 2, **where, correlation=self._correlation)
        for number in range(work.kernels):
            start = work.start + number * work.duration
            self.kernel(start, work.duration, correlation=self._correlation, stream=work.stream)
        self.arrow(self._correlation, "ac2g", work.launch, work.start, tid=work.stream)
        return self._correlation

    def step(self, name: str, start: float, duration: float, *works: Work) -> dict[str, Any]:
        """Add a labelled step and what it launched."""
        label = self.label(name, start, duration)
        for work in works:
            self.work(work)
        return label

    def steps(self, names: Iterable[str], *, start: float = 0, every: float = 100, device: bool = True) -> None:
        """Add a step for each name, ``every`` us apart: an op, and a kernel of half that length at its middle."""
        for number, name in enumerate(names):
            at = start + number * every
            self.label(name, at, every * 0.8)
            self.op("aten::mm", at + 1, every * 0.7)
            if device:
                self.work(Work(at + 2, at + every / 2, every / 2))

    # -- outcomes -----------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the trace as JSON, one event a line."""
        header = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in self.header.items())
        events = ",\n".join(json.dumps(event) for event in self.events)
        return f'{{\n{header}"traceEvents": [\n{events}\n]}}\n'

    def write(self, folder: Path, name: str = "made.json") -> Path:
        """Write the trace into a folder; compressed where the name says so."""
        path = folder / name
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def read(self, folder: Path) -> Trace:
        """Write the trace, and read it into columns."""
        return read_trace(self.write(folder))

    def analyze(self, folder: Path) -> StepAnalysis:
        """Write and read the trace, and find its steps."""
        return steps_of(self.read(folder))


def read_events(path: Path) -> dict[str, Any]:
    """Read a written trace as any JSON reader does."""
    data = path.read_bytes()
    trace: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return trace


def event_texts(path: Path) -> list[str]:
    """Cut the events out of a trace, each exactly as it stands in the file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    decoder = json.JSONDecoder()
    texts = []
    at = SEPARATOR.match(text, text.index("[", text.index('"traceEvents"')) + 1)
    while at is not None and text[at.end()] == "{":
        _, end = decoder.raw_decode(text, at.end())
        texts.append(text[at.end() : end])
        at = SEPARATOR.match(text, end)
    return texts
