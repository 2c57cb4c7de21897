"""Profiler recipes: what to tell each engine's profiler, so that it records the steps of a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from tracelens_infer.steps.profile_window import ProfileWindow, centred_delay
from tracelens_infer.steps.workload import WINDOW_WAVE, Workload

__all__ = ["Engine", "ProfilerRecipe", "newest_recipes", "profiler_recipes"]

Engine = Literal["vllm", "sglang"]

TRACE_FOLDER = '"$PWD/traces"'  # the engines want an absolute path; the shell makes one
VLLM_URL = "http://localhost:8000"  # each engine's own default port
SGLANG_URL = "http://localhost:30000"

_WHEN_TO_START = "Steps count from this request: send it when the benchmark starts, after any warm-up requests."


@dataclass(frozen=True, slots=True)
class ProfilerRecipe:
    """How is one engine's profiler told when to start and for how long?

    Attributes:
        family: the engine.
        engine: its name, and the versions or the mode that this is for.
        delay_iters: step at which the profile starts, counted from the start of the run.
        max_iters: steps to profile.
        environment: variables to set before the server starts, as NAME=VALUE for a shell.
        server_flags: options to add to the server's command line.
        commands: shell commands to run, in order.
        remarks: what to know about it; those that begin with ``curl`` are commands to run in other cases.
    """

    family: Engine
    engine: str
    delay_iters: int
    max_iters: int
    environment: tuple[str, ...] = ()
    server_flags: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def profiler_recipes(workload: Workload, profile: ProfileWindow) -> tuple[ProfilerRecipe, ...]:
    """How is each engine's profiler told of this profile? Of each engine, what most will use comes first."""
    # Where prefills stop the decodes, the same wave of requests finishes later: a cycle holds the prefills too.
    centre = WINDOW_WAVE * workload.exclusive_cycle_steps
    exclusive_delay = centred_delay(centre, profile.max_iters, profile.delay_iters)
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


def newest_recipes(recipes: tuple[ProfilerRecipe, ...]) -> tuple[ProfilerRecipe, ...]:
    """Which recipes are those of each engine's newest version, in its default mode?"""
    first: dict[Engine, ProfilerRecipe] = {}
    for recipe in recipes:
        first.setdefault(recipe.family, recipe)
    return tuple(first.values())


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
        family="vllm",
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
        family="vllm",
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
        family="vllm",
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
        family="sglang",
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
