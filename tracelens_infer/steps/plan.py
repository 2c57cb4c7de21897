"""Plan: when to profile a benchmark, for how long, and what to tell each engine's profiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tracelens_infer.errors import UsageError
from tracelens_infer.notes import Note
from tracelens_infer.steps.local_mix import LocalMix
from tracelens_infer.steps.profile_window import LONGEST_PROFILE_STEPS, SHORTEST_PROFILE_STEPS, ProfileWindow
from tracelens_infer.steps.profiler_recipes import ProfilerRecipe, profiler_recipes
from tracelens_infer.steps.whole_numbers import ROUNDING, round_up
from tracelens_infer.steps.workload import Workload

__all__ = ["SCHEMA_VERSION", "Plan", "ProfilerRecipe", "make_plan"]

SCHEMA_VERSION = 1

# Key of a plan's inputs -> the field of Workload it stands for: the same, with a unit where it is not obvious.
_INPUTS = {
    "concurrency": "concurrency",
    "output_tokens": "output_tokens",
    "length_ratio": "length_ratio",
    "range_ratio_style": "range_ratio_style",
    "num_prompts": "num_prompts",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "chunk_size_tokens": "chunk_size",
    "data_parallel_ranks": "data_parallel",
    "pipeline_stages": "pipeline_stages",
}
COMPLETION_RANGES = 5  # told in a plan: up to the one that is profiled


@dataclass(frozen=True, slots=True)
class Plan:
    """When should this benchmark be profiled, and what will the profile hold?

    Every other figure is a property of ``workload``; ``to_dict`` lists them all.

    Attributes:
        workload: the benchmark, with the closed-form figures.
        shortest_steps: lower limit that was put on the profile's length, in steps.
        longest_steps: upper limit, in steps.
        profile: the steps to profile.
        mix: how many of them are expected to hold a prefill, at that place in the run; None where that cannot be
            said (a Note tells why).
        recipes: what to tell each engine.
        notes: what limits the figures.
    """

    workload: Workload
    shortest_steps: int
    longest_steps: int
    profile: ProfileWindow
    mix: LocalMix | None
    recipes: tuple[ProfilerRecipe, ...]
    notes: tuple[Note, ...]

    @property
    def mixed_steps_stationary(self) -> float:
        """How many profiled steps would hold a prefill if prefills were spread evenly over the run?"""
        work = self.workload
        fraction = work.mix_fraction_chunked if work.is_chunked else None
        return self.profile.max_iters * (work.mix_fraction_document if fraction is None else fraction)

    @property
    def completion_ranges(self) -> tuple[tuple[int, int], ...]:
        """Between which steps does each of the first groups of CONC requests end?"""
        ranges = (self.workload.completion_range_steps(k) for k in range(1, COMPLETION_RANGES + 1))
        return tuple((round(first), round(last)) for first, last in ranges)

    def to_dict(self) -> dict[str, Any]:
        """What does the plan say, as JSON values? Names tell the unit where it is not obvious; ends are exclusive."""
        return {
            "schema_version": SCHEMA_VERSION,
            "inputs": self._inputs(),
            "output_lengths": self._output_lengths(),
            "run": self._run_figures(),
            "expected_mix": self._mix_figures(),
            "profile": self._profile_figures(),
            "profilers": [asdict(recipe) for recipe in self.recipes],
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
            workload = Workload(**{field: given[key] for key, field in _INPUTS.items()})
            limits = given["shortest_profile_steps"], given["longest_profile_steps"]
        except (KeyError, TypeError) as error:
            raise UsageError(
                "plan", f"is not one that to_dict() wrote: {error!r}", "make it again from CONC, OSL and R"
            ) from error
        return make_plan(workload, *limits)

    def _inputs(self) -> dict[str, Any]:
        return {
            **{key: getattr(self.workload, field) for key, field in _INPUTS.items()},
            "num_prompts": self.workload.prompts,
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
            "rank_concurrency": work.rank_concurrency,
            "rank_prompts": work.rank_prompts,
            "requests_per_step": work.requests_per_step,
            "completions_per_step": work.completions_per_step,
            "total_steps": round(work.total_steps),
            "prefill_decode_steps": round(work.prefill_decode_steps),
            "decode_only_steps": round(work.decode_only_steps),
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
            "profile_local_fraction": self.mix and self.mix.fraction,
            "profile_local_steps": self.mix and self.mix.prefill_decode_steps,
            "profile_local_completions": self.mix and self.mix.completions,
            "profile_stationary_steps": self.mixed_steps_stationary,
        }

    def _profile_figures(self) -> dict[str, Any]:
        first, last = self.workload.analytic_window_steps
        return {
            "max_iters": self.profile.max_iters,
            "unclamped_max_iters": round(self.profile.unclamped_max_iters),
            "delay_iters": self.profile.delay_iters,
            "first_step": self.profile.first_step,
            "end_step": self.profile.end_step,
            "analytic_window_first_step": round(first),
            "analytic_window_last_step": round(last),
            "completion_ranges_steps": [list(steps) for steps in self.completion_ranges],
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
    withheld = workload.why_no_local_mix(profile.first_step, profile.end_step)
    return Plan(
        workload=workload,
        shortest_steps=shortest_steps,
        longest_steps=longest_steps,
        profile=profile,
        mix=workload.local_mix_chunked(profile.first_step, profile.end_step),
        recipes=profiler_recipes(workload, profile),
        notes=(*workload.notes, *profile.notes, *([withheld] if withheld else ())),
    )


def _check_run_is_long_enough(workload: Workload, profile: ProfileWindow) -> None:
    if profile.end_step <= workload.total_steps * (1 + ROUNDING):
        return
    enough = round_up(profile.end_step * workload.concurrency / workload.mean_output_tokens)
    raise UsageError(
        f"num_prompts (--num-prompts): {workload.prompts}",
        f"gives a run of {workload.total_steps:,.0f} steps, and the profile would end at step {profile.end_step:,}",
        f"run the benchmark with --num-prompts {enough} or more",
    )
