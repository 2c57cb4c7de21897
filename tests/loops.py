"""Loops with known iterations and no labels, to test the cascade on: serving, training, diffusion, kernels, noise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens_infer.trace.columns import Trace
from tracelens_infer.trace.reader import read_trace

MAIN, WORKER = 100, 101


@dataclass
class Loop:
    """Writes events and remembers where each iteration begins (us). ``device``: with launches and kernels."""

    device: bool = True
    stacks: bool = False
    seed: int = 0
    now: float = 1000.0
    free_at: float = 0.0
    starts: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def span(self, category: str, name: str, start: float, duration: float, thread: int = MAIN, **args: Any) -> None:  # noqa: ANN401
        """Add one complete event."""
        shown = {"ph": "X", "cat": category, "name": name, "pid": MAIN, "tid": thread, "ts": start, "dur": duration}
        self.events.append(shown | ({"args": args} if args else {}))

    def rest(self, microseconds: float) -> None:
        """Let the host do nothing that is recorded."""
        self.now += microseconds * self.random.uniform(0.8, 1.2)

    def op(self, name: str, *kernels: tuple[str, float], thread: int = MAIN, lasts: float = 8.0) -> None:
        """Run one op, with a launch for each of its kernels."""
        begin, length = self.now, lasts * self.random.uniform(0.8, 1.2) + 4.0 * len(kernels)
        self.span("cpu_op", name, begin, length, thread)
        for number, kernel in enumerate(kernels if self.device else ()):
            self.launch(begin + 1 + 4.0 * number, [kernel], thread)
        self.now += length + self.random.uniform(1, 3)

    def launch(self, at: float, kernels: Iterable[tuple[str, float]], thread: int = MAIN) -> None:
        """Launch kernels, several of them as a graph, on one stream."""
        self.correlation += 1
        kernels = list(kernels)
        call = "cudaGraphLaunch" if len(kernels) > 1 else "cudaLaunchKernel"
        self.span("cuda_runtime", call, at, 2.0, thread, correlation=self.correlation)
        for name, lasts in kernels:
            begin = max(at + 6, self.free_at)
            length = lasts * self.random.uniform(0.95, 1.05)
            shown = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin, "dur": length}
            self.events.append(shown | {"args": {"correlation": self.correlation, "device": 0, "stream": 7}})
            self.free_at = begin + length + 0.5

    def framed(self, name: str, begin: float) -> None:
        """Draw a python frame from ``begin`` until now, if there are stacks."""
        if self.stacks:
            self.span("python_function", name, begin, self.now - begin)

    def labelled(self, name: str, begin: float) -> None:
        """Draw a label from ``begin`` until now."""
        self.span("user_annotation", name, begin, self.now - begin)

    def write(self, folder: Path) -> Path:
        """Write the trace."""
        path = folder / "loop.json"
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path

    def read(self, folder: Path) -> Trace:
        """Write and read it back."""
        return read_trace(self.write(folder))


LAYER = (("aten::rms_norm", "norm", 3.0), ("aten::mm", "gemm_qkv", 12.0), ("attention", "flash", 9.0),
         ("aten::mm", "gemm_out", 8.0), ("aten::silu", "silu", 4.0))  # fmt: skip


def serving(
    prefills: Iterable[bool],
    *,
    layers: int = 6,
    graphs: bool = True,
    scopes: bool = False,
    compiled: bool = False,
    collectives: bool = False,
    label: str = "",
    phase_frames: bool = False,
    **options: Any,  # noqa: ANN401
) -> Loop:
    """Make an engine's loop, one step for each of ``prefills``, with the decoys that are asked for.

    ``phase_frames``: prefills and decodes go through different calls.

    ``scopes``: the engine's own scopes inside a step; ``compiled``: one label a layer; ``label``: one around a step.
    """
    loop = Loop(**options)
    loop.now += 50
    begin_of_all = loop.now - 20
    for number, prefill in enumerate(prefills):
        loop.rest(300)
        begin = loop.now
        loop.starts.append(begin)
        loop.now += 2
        _scoped(loop, "gpu_model_runner: preprocess", scopes, _prepare)
        _scoped(
            loop,
            "gpu_model_runner: forward",
            scopes,
            lambda loop, prefill=prefill: _forward(
                loop, layers, eager=prefill or not graphs, compiled=compiled, collectives=collectives
            ),
        )
        _scoped(loop, "gpu_model_runner: sample", scopes, _sample)
        if phase_frames:
            loop.framed(f"model_runner.py({50 + prefill}): forward_{'extend' if prefill else 'decode'}", begin + 1)
            loop.framed("model_runner.py(1): forward", begin + 0.5)
        loop.framed("engine/core.py(40): step", begin)
        if label:
            loop.labelled(f"{label} {number}", begin)
        loop.now = max(loop.now, loop.free_at)  # the tokens are waited for
    loop.framed("engine/core.py(12): busy_loop", begin_of_all)
    return loop


def _scoped(loop: Loop, name: str, wanted: bool, run: Any) -> None:  # noqa: ANN401
    begin = loop.now
    loop.now += 0.5
    run(loop)
    if wanted:
        loop.labelled(name, begin)


def _prepare(loop: Loop) -> None:
    loop.op("aten::copy_", ("Memcpy HtoD", 2.0))
    loop.op("aten::slice")
    loop.op("aten::index_select", ("index", 2.0))


def _forward(loop: Loop, layers: int, *, eager: bool, compiled: bool, collectives: bool) -> None:
    loop.op("aten::embedding", ("embed", 3.0))
    if not eager and loop.device:
        at = loop.now
        loop.launch(at, [(kernel, lasts) for _ in range(layers) for _, kernel, lasts in LAYER])
        loop.span("cpu_op", "replay", at - 1, 8)
        loop.now += 12
    else:
        for _ in range(layers):
            begin = loop.now
            loop.now += 0.5
            for op, kernel, lasts in LAYER:
                loop.op(op, (kernel, lasts * (4 if eager else 1)))
            if collectives:
                inner = loop.now
                loop.op("c10d::allreduce_", ("ncclDevKernel_AllReduce", 5.0))
                loop.labelled("nccl:all_reduce", inner)
            if compiled:
                loop.labelled("## Call CompiledFxGraph fb7ybpxq7rrbk5ejpqtvnvv6 ##", begin)
    loop.op("aten::mm", ("gemm_head", 20.0))


def _sample(loop: Loop) -> None:
    loop.op("aten::softmax", ("softmax", 4.0))
    loop.op("aten::argmax", ("argmax", 3.0), ("Memcpy DtoH", 2.0))


def training(steps: int, *, blocks: int = 5, **options: Any) -> Loop:  # noqa: ANN401
    """Make a training loop: data loader, forward, backward on a thread of its own, optimizer."""
    loop = Loop(**options)
    for _ in range(steps):
        loop.rest(40)
        begin = loop.now
        loop.starts.append(begin)
        loop.now += 1
        loop.op("enumerate(DataLoader)#__next__", lasts=400)
        for number in range(blocks):
            loop.op("aten::conv2d", ("conv", 10.0))
            loop.op("aten::batch_norm", ("bn", 4.0))
            if number % 2:
                loop.op("aten::add_", ("add", 2.0))
        loop.op("aten::nll_loss", ("loss", 3.0))
        for number in range(blocks):
            loop.op("ConvolutionBackward0", ("dgrad", 12.0), ("wgrad", 12.0), thread=WORKER)
            loop.op("NativeBatchNormBackward0", ("bn_bwd", 6.0), thread=WORKER)
            if number % 2:
                loop.op("AddBackward0", thread=WORKER)
        loop.op("Optimizer.step#SGD.step", ("sgd", 15.0))
        loop.framed("train.py(20): train_step", begin)
    return loop


def accumulating(steps: int, micro_batches: int, *, label: bool = True, **options: Any) -> Loop:  # noqa: ANN401
    """Make training with gradient accumulation; torch labels the optimizer, unless ``label`` is False."""
    loop = Loop(**options)
    everything = loop.now
    for _ in range(steps):
        for number in range(micro_batches):
            loop.rest(60)
            begin = loop.now
            if not number:
                loop.starts.append(begin)
            loop.now += 1
            loop.op("aten::embedding", ("embed", 3.0))
            for suffix in ("", "_bwd"):
                for _ in range(4):
                    for op, kernel, lasts in LAYER:
                        loop.op(op + suffix, (kernel + suffix, lasts))
            loop.framed("train.py(20): micro_batch", begin)
        begin = loop.now
        loop.now += 1
        for _ in range(6):
            loop.op("aten::_foreach_add_", ("adam", 10.0 * micro_batches))
        if label:
            loop.labelled("Optimizer.step#AdamW.step", begin)
        loop.framed("train.py(30): update", begin)
    loop.framed("train.py(1): main", everything - 1)
    return loop


def evaluating(steps: int, every: int, batches: int, **options: Any) -> Loop:  # noqa: ANN401
    """Make training that evaluates a few batches after every so many steps."""
    loop = Loop(**options)
    everything = loop.now
    for number in range(steps):
        loop.rest(60)
        begin = loop.now
        loop.starts.append(begin)
        loop.now += 1
        loop.op("enumerate(DataLoader)#__next__", lasts=200)
        for suffix in ("", "_bwd"):
            for _ in range(2):
                for op, kernel, lasts in LAYER:
                    loop.op(op + suffix, (kernel + suffix, lasts))
        update = loop.now
        loop.now += 1
        for _ in range(4):
            loop.op("aten::_foreach_add_", ("adam", 10.0))
        loop.labelled("Optimizer.step#Adam.step", update)
        loop.framed("train.py(4): train_step", begin)
        for _ in range(batches if number % every == every - 1 else 0):
            begin = loop.now
            loop.now += 1
            for _ in range(2):
                for op, kernel, lasts in LAYER:
                    loop.op(op, (kernel, lasts))
            loop.op("aten::argmax", ("argmax", 3.0))
            loop.framed("train.py(14): eval_step", begin)
            loop.rest(20)
    loop.framed("train.py(1): main", everything - 1)
    return loop


def generating(calls: int, tokens: int, **options: Any) -> Loop:  # noqa: ANN401
    """Make calls that generate a text each: a prefill and a decode for every further token, in one call's loop."""
    loop = Loop(**options)
    everything = loop.now
    for _ in range(calls):
        loop.rest(500)
        of_call = loop.now
        loop.now += 1
        for number in range(tokens):
            begin = loop.now
            loop.starts.append(begin)
            loop.now += 1
            loop.op("aten::embedding", ("embed", 3.0))
            for _ in range(5):
                for op, kernel, lasts in LAYER:
                    loop.op(op, (kernel, lasts * (1 if number else 6)))
            loop.op("aten::mm", ("gemm_head", 20.0))
            loop.framed("nn.Module: LlamaForCausalLM_0", begin)
            loop.op("aten::argmax", ("argmax", 3.0))
            loop.rest(30)
        loop.framed("generation/utils.py(2000): generate", of_call)
    loop.framed("main.py(3): main", everything - 1)
    return loop


def uneven(steps: int, **options: Any) -> Loop:  # noqa: ANN401
    """Make steps whose layers loop over experts, once or sixty times."""
    loop = Loop(**options)
    everything = loop.now
    for _ in range(steps):
        loop.rest(50)
        begin = loop.now
        loop.starts.append(begin)
        loop.now += 1
        experts = loop.random.choice([1, 1, 2, 30, 60])
        loop.op("aten::embedding", ("embed", 3.0))
        for _ in range(4 * experts):
            for op, kernel, lasts in LAYER:
                loop.op(op, (kernel, lasts))
        loop.op("aten::argmax", ("argmax", 3.0))
        loop.framed("engine.py(3): step", begin)
    loop.framed("engine.py(1): run", everything - 1)
    return loop


def diffusion(steps: int = 4, *, blocks: int = 8, **options: Any) -> Loop:  # noqa: ANN401
    """Make a pipeline: a long encode, a few heavy denoise steps, a long decode."""
    loop = Loop(**options)
    everything = loop.now
    begin = loop.now
    loop.now += 1
    for number in range(60):
        loop.op(f"encoder_{'abcde'[number % 5]}{'' if number < 30 else '_late'}", (f"enc{number % 5}", 40.0))
    loop.framed("pipeline.py(10): encode_prompt", begin)
    for _ in range(steps):
        loop.rest(60)
        begin = loop.now
        loop.starts.append(begin)
        loop.now += 1
        loop.op("aten::scale", ("scale", 5.0))
        for _ in range(blocks):
            for op, kernel, lasts in LAYER:
                loop.op(op, (kernel, 12 * lasts))
        loop.op("scheduler_step", ("step", 8.0))
        loop.framed("pipeline.py(30): denoise", begin)
    loop.rest(60)
    begin = loop.now
    loop.now += 1
    for number in range(50):
        loop.op(f"decoder_{'xyz'[number % 3]}", (f"dec{number % 3}", 50.0))
    loop.framed("pipeline.py(50): decode_latents", begin)
    loop.framed("pipeline.py(5): __call__", everything)
    return loop


def kernels_only(prefills: Iterable[bool], *, layers: int = 6) -> Loop:
    """Make what a recording of the device alone shows of an engine's loop."""
    loop = serving(prefills, layers=layers)
    firsts = [event for event in loop.events if event["name"] == "Memcpy HtoD"]
    loop.starts = [event["ts"] for event in firsts]
    loop.events = [event for event in loop.events if event["cat"] == "kernel"]
    for event in loop.events:
        del event["args"]["correlation"]
    return loop


def noise(size: int = 3000, kinds: int = 40, **options: Any) -> Loop:  # noqa: ANN401
    """Make ops in an order that chance decides."""
    loop = Loop(**options)
    for _ in range(size):
        name = f"op_{chr(97 + loop.random.randrange(26))}{chr(97 + loop.random.randrange(max(kinds // 26, 1)))}"
        loop.op(name, (f"kernel_{name}", loop.random.expovariate(0.2) + 1))
        if loop.random.random() < 0.05:
            loop.rest(loop.random.uniform(0, 300))
    return loop
