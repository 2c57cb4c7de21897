"""StepAnnotation: the text an engine puts around a step, as values, and the registry of the grammars it is read by."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note

__all__ = [
    "AttentionLoad",
    "PhaseLoad",
    "StepAnnotation",
    "StepFormat",
    "format_notes",
    "is_graph_capture",
    "parse_annotation",
    "register_format",
    "registered_formats",
    "vllm_text",
]

ENTRY_POINT_GROUP = "tracelens_infer.step_formats"

ENGINE_RANK = 0  # the label comes from the engine: it marks its own iterations
PROFILER_RANK = 10  # the label comes from the profiler's schedule, which may tick once for many iterations

BOTH_PHASES_MODE = "MIXED"

MAX_DIGITS = 18  # whatever has no more digits fits int64, and int() refuses texts of more than 4,300

# The interpreter lists the standard library's archive in sys.path, whether it is there or not.
_STANDARD_ARCHIVE = f"python{sys.version_info.major}{sys.version_info.minor}.zip"

_GRAPH_CAPTURE = re.compile(r"capture_[0-9]+_[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class PhaseLoad:
    """How much work do the requests of one phase (context or generation) bring to a step?

    Sums over the requests; ``None`` where the annotation does not tell.

    Attributes:
        requests: number of requests in this phase.
        query_tokens: sum of N_Q, the tokens scheduled in this step.
        kv_tokens: sum of N_KV, the tokens attended to (computed before plus scheduled now).
        query_kv: sum of N_Q * N_KV.
        query_query: sum of N_Q squared.
    """

    requests: int = 0
    query_tokens: int | None = None
    kv_tokens: int | None = None
    query_kv: int | None = None
    query_query: int | None = None

    @property
    def has_sums(self) -> bool:
        """Are all four sums known? A phase without requests has none to know."""
        return self.requests == 0 or None not in (self.query_tokens, self.kv_tokens, self.query_kv, self.query_query)


@dataclass(frozen=True, slots=True)
class AttentionLoad:
    """How much attention does a step compute, for prefills (context) and decodes (generation) apart?"""

    context: PhaseLoad = field(default_factory=PhaseLoad)
    generation: PhaseLoad = field(default_factory=PhaseLoad)

    @property
    def has_sums(self) -> bool:
        """Are all four sums known for every phase that has requests?"""
        return self.context.has_sums and self.generation.has_sums


@dataclass(frozen=True, slots=True)
class StepAnnotation:
    """What does a step's label say?

    Attributes:
        format: name of the grammar that matched, e.g. ``vllm-detailed``.
        load: the requests and tokens it tells; None where it tells none (``ProfilerStep#3``) or does not tell the
            phases apart (``step[MIXED bs=62]``).
        padded_batch: batch size after padding to a captured graph, where told.
        text: the label as it stands in the trace.
        mode: the label's own word for what the step does (``EXTEND``, ``decode``), where it has one. ``MIXED`` says
            that both phases are in the step.
        batch_size: number of requests of both phases together, where told.
    """

    format: str
    load: AttentionLoad | None
    padded_batch: int | None
    text: str
    mode: str | None = None
    batch_size: int | None = None

    @property
    def has_context(self) -> bool | None:
        """Does a request prefill in this step? None where the label does not tell."""
        if self.load is not None:
            return self.load.context.requests > 0
        return True if self.mode == BOTH_PHASES_MODE else None

    @property
    def has_generation(self) -> bool | None:
        """Does a request decode in this step? None where the label does not tell."""
        if self.load is not None:
            return self.load.generation.requests > 0
        return True if self.mode == BOTH_PHASES_MODE else None

    @property
    def requests(self) -> int | None:
        """How many requests run in this step? None where the label does not tell."""
        if self.load is not None:
            return self.load.context.requests + self.load.generation.requests
        return self.batch_size


@dataclass(frozen=True, slots=True)
class StepFormat:
    """How is one grammar of step labels read?

    Attributes:
        name: unique, ``family`` or ``family-variant``.
        parse: a label's values, or None for any text that is not, from end to end, a label of this grammar.
        has_aggregates: whether every load it returns carries all four sums for each phase that has requests.
        rank: which format to trust as the step where several mark a trace; smaller wins.
        prefixes: ``parse`` is only called for texts that start with one of these; the default lets every text pass.
    """

    name: str
    parse: Callable[[str], StepAnnotation | None]
    has_aggregates: bool = False
    rank: int = ENGINE_RANK
    prefixes: tuple[str, ...] = ("",)

    @property
    def family(self) -> str:
        """Which formats may take turns in one trace? Those with the same name up to the first hyphen."""
        return self.name.partition("-")[0]


class _Registry:
    """The formats in the order they are tried; built-in ones and plug-ins are loaded on first use."""

    def __init__(self) -> None:
        self.formats: tuple[StepFormat, ...] = ()
        self.prefixes: tuple[str, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self.ready = False
        self._loading = False
        self._lock = threading.RLock()

    def load(self) -> None:
        with self._lock:
            # A plug-in may itself call register_format() while it is being loaded.
            if self.ready or self._loading:
                return
            self._loading = True
            try:
                # Imported here because the built-in formats are made of this module's types.
                from tracelens_infer.steps.formats import BUILT_IN

                for built_in in BUILT_IN:
                    self.insert(built_in)
                self._load_plugins()
                self.ready = True
            finally:
                self._loading = False

    def insert(self, fmt: StepFormat, *, before: str | None = None, after: str | None = None) -> None:
        with self._lock:
            names = [known.name for known in self.formats]
            _check_place(fmt.name, names, before, after)
            place = len(names)
            if before is not None:
                place = names.index(before)
            elif after is not None:
                place = names.index(after) + 1
            self.formats = (*self.formats[:place], fmt, *self.formats[place:])
            self.prefixes = tuple({prefix: None for known in self.formats for prefix in known.prefixes})

    def _load_plugins(self) -> None:
        if not _plugins_may_exist():
            return
        from importlib import metadata

        for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                for fmt in _plugin_formats(entry_point.load()):
                    self.insert(fmt)
            except Exception as error:  # noqa: BLE001 - other people's code: it may raise anything, and must not end ours
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                text = f"The step format plug-in {entry_point.name} ({entry_point.value}) is left out: {reason}"
                self.notes += (Note("warning", "step_format_plugin_failed", text),)


def _plugins_may_exist() -> bool:
    """Does any installed distribution name our group? Looking takes 2 ms, importing importlib.metadata 30."""
    for entry in filter(os.path.isdir, sys.path):
        with os.scandir(entry) as found:
            infos = [item.path for item in found if item.name.endswith((".dist-info", ".egg-info"))]
        for info in infos:
            try:
                with open(os.path.join(info, "entry_points.txt"), "rb") as listed:  # noqa: PTH118, PTH123 - speed
                    if ENTRY_POINT_GROUP.encode() in listed.read():
                        return True
            except OSError:
                continue  # most have none
    # Distributions in archives have to be asked.
    return any(os.path.isfile(entry) and not entry.endswith(_STANDARD_ARCHIVE) for entry in sys.path)  # noqa: PTH113


def _check_place(name: str, names: list[str], before: str | None, after: str | None) -> None:
    if name in names:
        raise UsageError(f"step format {name}", "A format of this name is registered already.", "Choose another name.")
    if before is not None and after is not None:
        raise UsageError(f"step format {name}", "Both before and after are given.", "Give one of them.")
    anchor = before if before is not None else after
    if anchor is not None and anchor not in names:
        raise UsageError(
            f"step format {name}", f"There is no format {anchor} to place it by.", f"Choose one of {', '.join(names)}."
        )


def _plugin_formats(loaded: object) -> Iterable[StepFormat]:
    made = loaded() if callable(loaded) else loaded
    formats = (made,) if isinstance(made, StepFormat) else tuple(made) if isinstance(made, Iterable) else (made,)
    for fmt in formats:
        if not isinstance(fmt, StepFormat):
            raise TypeError(f"expected a StepFormat, or a callable that returns StepFormats, not {type(fmt).__name__}")
    return formats


_registry = _Registry()


def register_format(fmt: StepFormat, *, before: str | None = None, after: str | None = None) -> None:
    """How does the library learn another grammar of step labels?

    Formats are tried in order and the first that matches wins. A new one goes to the end, or right ``before`` or
    ``after`` the named one.

    Raises:
        UsageError: the name is taken, the anchor is unknown, or both anchors are given.
    """
    _registry.load()
    _registry.insert(fmt, before=before, after=after)


def registered_formats() -> tuple[StepFormat, ...]:
    """Which grammars are step labels read by, in the order they are tried?

    The first use loads the entry points of group ``tracelens_infer.step_formats``; each is a StepFormat or a callable
    that returns one or several. What went wrong there is in :func:`format_notes`.
    """
    _registry.load()
    return _registry.formats


def format_notes() -> tuple[Note, ...]:
    """Which plug-in formats could not be loaded, and why?"""
    _registry.load()
    return _registry.notes


def parse_annotation(text: str) -> StepAnnotation | None:
    """What does this label say about a step? None where it is not a step label.

    Only whole labels match, so the scopes that engines nest inside a step (``gpu_model_runner: forward``) do not.
    """
    registry = _registry
    if not registry.ready:
        registry.load()
    # Most texts of a trace are no labels, and one startswith() turns them away.
    if not text.startswith(registry.prefixes):
        return None
    for fmt in registry.formats:
        if text.startswith(fmt.prefixes):
            annotation = fmt.parse(text)
            if annotation is not None:
                return annotation
    return None


def is_graph_capture(text: str) -> bool:
    """Does this label (``capture_128_decode``) mark the capture of a graph? That is start-up work, not a step."""
    return text.startswith("capture_") and _GRAPH_CAPTURE.fullmatch(text) is not None


def vllm_text(load: AttentionLoad) -> str:
    """How does vLLM's detailed grammar write this load? The format ``vllm-detailed`` reads the text back.

    Raises:
        UsageError: a phase with requests lacks a sum, or a value is negative or has more than 18 digits.
    """
    tokens = (load.context.query_tokens or 0) + (load.generation.query_tokens or 0)
    if tokens >= 10**MAX_DIGITS:
        raise UsageError("load", "The tokens of both phases are too many.", f"Give at most {MAX_DIGITS} digits.")
    context, generation = _vllm_phase("context", load.context), _vllm_phase("generation", load.generation)
    return f"execute_{tokens}_{context}_{generation}"


def _vllm_phase(name: str, phase: PhaseLoad) -> str:
    if not phase.has_sums:
        raise UsageError(
            f"{name} load", "Its requests have sums that are not known.", "Give all four sums of each phase."
        )
    sums = (phase.query_tokens or 0, phase.kv_tokens or 0, phase.query_query or 0, phase.query_kv or 0)
    if not all(0 <= value < 10**MAX_DIGITS for value in (phase.requests, *sums)):
        raise UsageError(f"{name} load", "A value is negative or too large.", f"Give 0 to {MAX_DIGITS} digits.")
    query, kv, query_query, query_kv = sums
    return f"{name}_{phase.requests}(sq{query}sk{kv}sqsq{query_query}sqsk{query_kv})"
