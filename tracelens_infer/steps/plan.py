"""Plan: when to profile a benchmark, for how long, and what to tell each engine's profiler."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps.workload import (
    LONGEST_PROFILE_STEPS,
    ROUNDING,
    SHORTEST_PROFILE_STEPS,
    WINDOW_GENERATION,
    LocalMix,
    ProfileWindow,
    Workload,
)

__all__ = ["SCHEMA_VERSION", "Plan", "ProfilerRecipe", "make_plan"]

SCHEMA_VERSION = 1
TRACE_FOLDER = '"$PWD/traces"'  # the engines want an absolute path; the shell makes one
VLLM_URL = "http://localhost:8000"  # each engine's own default port
SGLANG_URL = "http://localhost:30000"

_WHEN_TO_START = "Steps count from this request: send it when the benchmark starts, after any warm-up requests."


@dataclass(frozen=True, slots=True)
class ProfilerRecipe:
    """How is one engine's profiler told when to start and for how long?

    Attributes:
        engine: engine, and its versions or mode.
        delay_iters: step at which the profile starts, counted from the start of the run.
        max_iters: steps to profile.
        environment: variables to set before the server starts, as NAME=VALUE for a shell.
        server_flags: options to add to the server's command line.
        commands: shell commands to run, in order.
        remarks: what to know about it.
    """

    engine: str
    delay_iters: int
    max_iters: int
    environment: tuple[str, ...] = ()
    server_flags: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """When should this benchmark be profiled, and what will the profile hold?

    Every other figure is a property of ``workload``; ``to_dict`` lists them all.

    Attributes:
        workload: the benchmark, with the closed-form figures.
        shortest_steps: lower limit that was put on the profile's length, in steps.
        longest_steps: upper limit, in steps.
        profile: the steps to profile.
        mix: how many of them are expected to hold a prefill, at that place in the run.
        recipes: what to tell each engine.
        notes: what limits the figures.
    """

    workload: Workload
    shortest_steps: int
    longest_steps: int
    profile: ProfileWindow
    mix: LocalMix
    recipes: tuple[ProfilerRecipe, ...]
    notes: tuple[Note, ...]

    @property
    def mixed_steps_stationary(self) -> float:
        """How many profiled steps would hold a prefill if prefills were spread evenly over the run?"""
        return self.profile.max_iters * self.workload.mix_fraction_document

    def to_dict(self) -> dict[str, Any]:
        """What does the plan say, as JSON values? Names end in their unit; ranges are [first, end)."""
        return {
            "schema_version": SCHEMA_VERSION,
            "inputs": self._inputs(),
            "output_lengths": self._output_lengths(),
            "run": self._run_figures(),
            "expected_mix": self._mix_figures(),
            "profile": self._profile_figures(),
            "profilers": [_recipe_dict(recipe) for recipe in self.recipes],
            "notes": [{"level": note.level, "code": note.code, "text": note.text} for note in self.notes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Which plan did ``to_dict`` write? Made again from its inputs.

        Raises:
            UsageError: ``data`` is not such a dictionary, or its inputs are out of range.
        """
        try:
            given = data["inputs"]
            workload = Workload(
                concurrency=given["concurrency_requests"],
                output_tokens=given["output_tokens"],
                length_ratio=given["length_ratio"],
                num_prompts=given["num_prompts_requests"],
                prompt_tokens=given["prompt_tokens"],
                cached_tokens=given["cached_tokens"],
                chunk_size=given["chunk_size_tokens"],
                range_ratio_style=given["range_ratio_style"],
                data_parallel=given["data_parallel_ranks"],
                pipeline_stages=given["pipeline_stages"],
            )
            limits = given["shortest_profile_steps"], given["longest_profile_steps"]
        except (KeyError, TypeError) as error:
            raise UsageError(
                "plan", f"is not one that to_dict() wrote: {error!r}", "make it again from CONC, OSL and R"
            ) from error
        return make_plan(workload, *limits)

    def _inputs(self) -> dict[str, Any]:
        work = self.workload
        return {
            "concurrency_requests": work.concurrency,
            "output_tokens": work.output_tokens,
            "length_ratio": work.length_ratio,
            "range_ratio_style": work.range_ratio_style,
            "num_prompts_requests": work.prompts,
            "prompt_tokens": work.prompt_tokens,
            "cached_tokens": work.cached_tokens,
            "chunk_size_tokens": work.chunk_size,
            "data_parallel_ranks": work.data_parallel,
            "pipeline_stages": work.pipeline_stages,
            "shortest_profile_steps": self.shortest_steps,
            "longest_profile_steps": self.longest_steps,
        }

    def _output_lengths(self) -> dict[str, Any]:
        work = self.workload
        return {
            "range_ratio_style": work.range_ratio_style,
            "shortest_output_tokens": work.shortest_output_tokens,
            "longest_output_tokens": work.longest_output_tokens,
            "mean_output_tokens": work.mean_output_tokens,
            "document_ratio": work.interpreted_ratio,
        }

    def _run_figures(self) -> dict[str, Any]:
        work = self.workload
        return {
            "rank_concurrency_requests": work.rank_concurrency,
            "rank_prompts_requests": work.rank_prompts,
            "requests_per_step": work.requests_per_step,
            "completions_per_step": work.completions_per_step,
            "total_steps": work.total_steps,
            "prefill_decode_steps": work.prefill_decode_steps,
            "decode_only_steps": work.decode_only_steps,
            "ramp_up_steps": work.ramp_up_steps,
            "needed_steps": work.steps_needed,
            "chunks_per_request": work.chunks_per_request,
            "prefill_budget_tokens": work.prefill_budget_tokens,
            "is_prefill_bound": work.is_prefill_bound,
        }

    def _mix_figures(self) -> dict[str, Any]:
        work = self.workload
        return {
            "document_fraction": work.mix_fraction_document,
            "stationary_unbatched_fraction": work.mix_fraction_document,
            "stationary_batched_fraction": work.mix_fraction_batched,
            "stationary_chunked_fraction": work.mix_fraction_chunked,
            "stationary_exclusive_fraction": work.mix_fraction_exclusive,
            "profile_local_fraction": self.mix.fraction,
            "profile_local_steps": self.mix.prefill_decode_steps,
            "profile_local_completions_requests": self.mix.completions,
            "profile_stationary_steps": self.mixed_steps_stationary,
        }

    def _profile_figures(self) -> dict[str, Any]:
        first, last = self.workload.analytic_window_steps
        return {
            "max_iters_steps": self.profile.max_iters,
            "unclamped_max_iters_steps": self.profile.unclamped_max_iters,
            "delay_iters_steps": self.profile.delay_iters,
            "first_step": self.profile.first_step,
            "end_step": self.profile.end_step,
            "analytic_window_first_step": first,
            "analytic_window_last_step": last,
        }


def make_plan(
    workload: Workload,
    shortest_steps: int = SHORTEST_PROFILE_STEPS,
    longest_steps: int = LONGEST_PROFILE_STEPS,
) -> Plan:
    """When should this benchmark be profiled, for how long, and with which flags?

    ``shortest_steps`` and ``longest_steps`` limit the length of the profile. Formulas: docs/formulas.md.

    Raises:
        UsageError: the run ends before the profile does; the error names the smallest NUM_PROMPTS that is enough.
    """
    profile = workload.profile_window(shortest_steps, longest_steps)
    _check_run_is_long_enough(workload, profile)
    return Plan(
        workload=workload,
        shortest_steps=shortest_steps,
        longest_steps=longest_steps,
        profile=profile,
        mix=workload.local_mix(profile.first_step, profile.end_step),
        recipes=_recipes(workload, profile),
        notes=(*workload.notes, *profile.notes),
    )


def _recipe_dict(recipe: ProfilerRecipe) -> dict[str, Any]:
    values = asdict(recipe)
    return {f"{name}_steps" if name.endswith("_iters") else name: value for name, value in values.items()}


def _check_run_is_long_enough(workload: Workload, profile: ProfileWindow) -> None:
    if profile.end_step <= workload.total_steps * (1 + ROUNDING):
        return
    enough = math.ceil(profile.end_step * workload.concurrency / workload.mean_output_tokens * (1 - ROUNDING))
    raise UsageError(
        f"num_prompts (--num-prompts): {workload.prompts}",
        f"gives a run of {workload.total_steps:,.0f} steps, and the profile would end at step {profile.end_step:,}",
        f"run the benchmark with --num-prompts {enough} or more",
    )


def _recipes(workload: Workload, profile: ProfileWindow) -> tuple[ProfilerRecipe, ...]:
    # Where prefills stop the decodes, the same generation of requests finishes later: a cycle holds the prefills too.
    centre = WINDOW_GENERATION * workload.exclusive_cycle_steps
    exclusive_delay = max(profile.delay_iters, round(centre - profile.max_iters / 2))
    return (
        _vllm_026(profile),
        _vllm_013(profile),
        _vllm_before_013(profile),
        _sglang(
            "SGLang, default scheduling (a prefill step holds no decodes)",
            exclusive_delay,
            profile.max_iters,
            f"Prefill steps come on top of the decode steps: the start is {exclusive_delay - profile.delay_iters:,}"
            " steps later than where prefills are mixed in.",
        ),
        _sglang("SGLang with --enable-mixed-chunk", profile.delay_iters, profile.max_iters),
    )


def _vllm_config(profile: ProfileWindow) -> tuple[str, ...]:
    return (
        "--profiler-config.profiler torch",
        f"--profiler-config.torch_profiler_dir {TRACE_FOLDER}",
        "--profiler-config.ignore_frontend True",  # the API process counts no steps and would record the whole run
        f"--profiler-config.delay_iterations {profile.delay_iters}",
        f"--profiler-config.max_iterations {profile.max_iters}",
    )


def _vllm_026(profile: ProfileWindow) -> ProfilerRecipe:
    body = json.dumps({"delay_iterations": profile.delay_iters, "max_iterations": profile.max_iters})
    per_request = f"curl -X POST {VLLM_URL}/start_profile -H 'Content-Type: application/json' -d '{body}'"
    return ProfilerRecipe(
        engine="vLLM 0.26 and later",
        delay_iters=profile.delay_iters,
        max_iters=profile.max_iters,
        server_flags=(*_vllm_config(profile), "--profiler-config.detailed_trace_annotation True"),
        commands=(f"curl -X POST {VLLM_URL}/start_profile",),
        remarks=(
            _WHEN_TO_START,
            "Newer releases (seen in 0.32) take the two counts with the request too, each time anew:",
            per_request,
        ),
    )


def _vllm_013(profile: ProfileWindow) -> ProfilerRecipe:
    return ProfilerRecipe(
        engine="vLLM 0.13 to 0.25",
        delay_iters=profile.delay_iters,
        max_iters=profile.max_iters,
        server_flags=_vllm_config(profile),
        commands=(f"curl -X POST {VLLM_URL}/start_profile",),
        remarks=(
            _WHEN_TO_START,
            "No detailed annotations: a step tells its requests and tokens, not the sums a roofline needs.",
        ),
    )


def _vllm_before_013(profile: ProfileWindow) -> ProfilerRecipe:
    by_hand = (
        "0.12 reads the two counts and stops by itself. Older releases count no steps: send the request after about"
        f" {profile.delay_iters:,} steps and, {profile.max_iters:,} steps later, this one:"
    )
    return ProfilerRecipe(
        engine="vLLM before 0.13",
        delay_iters=profile.delay_iters,
        max_iters=profile.max_iters,
        environment=(
            f"VLLM_TORCH_PROFILER_DIR={TRACE_FOLDER}",
            f"VLLM_PROFILER_DELAY_ITERS={profile.delay_iters}",
            f"VLLM_PROFILER_MAX_ITERS={profile.max_iters}",
        ),
        commands=(f"curl -X POST {VLLM_URL}/start_profile",),
        remarks=(
            by_hand,
            f"curl -X POST {VLLM_URL}/stop_profile",
        ),
    )


def _sglang(engine: str, delay_iters: int, max_iters: int, *remarks: str) -> ProfilerRecipe:
    body = json.dumps({"start_step": delay_iters, "num_steps": max_iters})
    return ProfilerRecipe(
        engine=engine,
        delay_iters=delay_iters,
        max_iters=max_iters,
        environment=(f"SGLANG_TORCH_PROFILER_DIR={TRACE_FOLDER}",),
        commands=(f"curl -X POST {SGLANG_URL}/start_profile -H 'Content-Type: application/json' -d '{body}'",),
        remarks=(
            *remarks,
            "start_step counts from the start of the server: use a fresh one, or add the steps it has run.",
        ),
    )
