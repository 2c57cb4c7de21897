"""``tracelens split`` as a user calls it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, steps_of_kinds
from tests.make_trace import DECODE, TraceMaker, read_events, vllm

STEADY = {"steady_mixed.json.gz", "steady_decode_only.json.gz", "steady_prefill_decode.json.gz"}
ALWAYS = {"split.json", "steps.csv", "steps.parquet"}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "split.json").read_text())
    return manifest


def numbered(folder: str, *numbers: int) -> set[str]:
    return {f"{folder}/{number:04}.json.gz" for number in numbers}


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ([], STEADY),
        (["--CONC", "8", "--OSL", "80", "--R", "1"], STEADY),
        (["--concurrency", "8", "--output-len", "80", "--range-ratio", "1", "--num-prompts", "80"], STEADY),
        (["--num-steps", "8"], STEADY),
        (["--iterations", "2:5"], {"iterations_2-5.json.gz"}),
        (["-i", "2:5"], {"iterations_2-5.json.gz"}),
        (["-i", "7"], {"iterations_7-8.json.gz"}),
        (["-i", "all"], {"iterations_0-40.json.gz"}),
        (["--store-single-iteration"], numbered("iterations", *range(40))),
        (["--store-single-iteration", "-i", "8:11"], numbered("iterations", 8, 9, 10)),
        (
            ["--divide-phases", "-i", "8:11"],
            {"iterations_8-11.json.gz"} | numbered("decode_only", 8, 10) | numbered("prefilldecodemix", 9),
        ),
        (["--find-steady-state", "-i", "2:5"], {*STEADY, "iterations_2-5.json.gz"}),
        (
            ["--find-steady-state", "-i", "8:11", "--store-single-iteration", "--divide-phases", "--no-gap-fill"],
            STEADY
            | numbered("iterations", 8, 9, 10)
            | numbered("decode_only", 8, 10)
            | numbered("prefilldecodemix", 9),
        ),
    ],
)
def test_each_option_writes_what_it_says(
    arguments: list[str], written: set[str], tracelens: Command, trace: Path, tmp_path: Path
) -> None:
    outcome = tracelens("split", trace, "-o", "out", *arguments)
    assert outcome.code == 0, outcome.err
    assert files(tmp_path / "out") == ALWAYS | written


def test_options_reach_the_manifest(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    flags = ["--allow-degraded", "--no-gap-fill", "--find-steady-state", "-i", "1:3"]
    numbers = {"--num-steps": 8, "--trace-starts-at": 30, "--CONC": 8, "--OSL": 80, "--R": 0.5, "--isl": 64}
    numbers |= {"--cached-tokens": 8, "--chunk-size": 512, "--dp": 1, "--pp": 1}
    flags += [str(word) for option in numbers.items() for word in option]
    assert tracelens("split", trace, "-o", "out", *flags).code == 0
    options = manifest_of(tmp_path / "out")["options"]
    assert options.pop("workload") == {
        "concurrency": 8,
        "output_tokens": 80,
        "length_ratio": 0.5,
        "num_prompts": None,
        "prompt_tokens": 64,
        "cached_tokens": 8,
        "chunk_size": 512,
        "range_ratio_style": "document",
        "data_parallel": 1,
        "pipeline_stages": 1,
    }
    assert options == {
        "num_steps": 8,
        "trace_starts_at": 30,
        "iterations": "1:3",
        "single_iterations": False,
        "divide_phases": False,
        "gap_fill": False,
        "allow_degraded": True,
        "llm_inference": False,
        "max_num_seq": None,
    }


def test_a_workload_out_of_range_is_refused_before_anything_is_read(tracelens: Command, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("no trace")
    outcome = tracelens("split", "x.json", "--CONC", "0", "--OSL", "10")
    assert (outcome.code, len(outcome.lines)) == (2, 3)
    assert "--CONC" in outcome.lines[0]


# -- what is said ----------------------------------------------------------------------------------------------------


def test_the_answer_says_what_was_found_and_where_it_is(tracelens: Command, trace: Path) -> None:
    outcome = tracelens("split", trace, "--num-steps", "12", "-o", "out")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert lines[:5] == [
        str(trace),
        "  40 steps from vLLM labels: 36 decode-only, 4 prefill-decode",
        "  They hold 100.0% of the device time (100.0% within labels); device durations.",
        "",
        "Steady state",
    ]
    text = " ".join(outcome.out.split())
    assert "8 requests sustained, a plateau" in text
    assert "11 decode-only, median 100.0 us; 1 prefill-decode, median 100.0 us" in text
    assert "8.3% of the steps with a prefill" in text
    assert "decode-only steps " in text
    end = lines.index("Written to out")
    assert lines[end + 1] == "  split.json, steps.csv, steps.parquet"
    assert [line.split()[0] for line in lines[end + 2 : -1]] == [
        "steady_mixed.json.gz",
        "steady_decode_only.json.gz",
        "steady_prefill_decode.json.gz",
    ]
    assert " ".join(lines[end + 2].split()) == "steady_mixed.json.gz 12 steps, 72 events"
    assert lines[-1] == ""


def test_a_long_list_of_files_is_cut(tracelens: Command, trace: Path) -> None:
    lines = tracelens("split", trace, "--store-single-iteration").out.splitlines()
    assert lines[-2] == "  and 32 more"
    assert lines[-3].startswith("  iterations/0007.json.gz  1 step, ")


def test_steps_that_do_not_tell_what_they_do(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([f"ProfilerStep#{number}" for number in range(12)], device=False)
    outcome = tracelens("split", maker.write(tmp_path))
    assert outcome.code == 0
    assert outcome.out.splitlines()[1:3] == [
        "  12 steps from ProfilerStep labels; they do not tell what a step does",
        "  They hold 100.0% of the host op time (100.0% within labels); host durations.",
    ]


def test_a_single_step_reads_well(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.steps([vllm(0, 8)])
    outcome = tracelens("split", maker.write(tmp_path))
    assert outcome.code == 0
    assert "  1 step from vLLM labels: 1 decode-only" in outcome.out
    assert "1 step, " in outcome.out
    assert "1 steps" not in outcome.out + outcome.err


def test_json_is_the_manifest_and_its_folder(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    outcome = tracelens("split", trace, "--json", "-o", "out")
    assert json.loads(outcome.out) == {"folder": "out", **manifest_of(tmp_path / "out")}
    assert outcome.err == ""


def test_json_of_a_failure_is_nothing(tracelens: Command) -> None:
    outcome = tracelens("split", "none.json", "--json")
    assert (outcome.code, outcome.out) == (3, "")


# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("run.json", "run_split"),
        ("run.pt.trace.json.gz", "run_split"),
        ("rank0.trace.json", "rank0_split"),
        ("run", "run_split"),
        ("a b.json", "a b_split"),
    ],
)
def test_the_output_is_called_after_the_trace(name: str, folder: str, tracelens: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    steps_of_kinds().write(tmp_path / "in", name)
    assert tracelens("split", f"in/{name}").code == 0
    assert (tmp_path / folder / "split.json").is_file()


def test_nothing_is_overwritten_without_force(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    assert tracelens("split", trace, "-i", "0:2").code == 0
    outcome = tracelens("split", trace, "-i", "3:5")
    assert outcome.code == 2
    assert outcome.lines == [
        f"error: {tmp_path / 'run_split'}",
        "  The output is there already.",
        "  Replace it with --force, or name another folder with -o.",
    ]
    assert "iterations_0-2.json.gz" in files(tmp_path / "run_split")
    assert tracelens("split", trace, "-i", "3:5", "--force").code == 0
    assert files(tmp_path / "run_split") == {*ALWAYS, "iterations_3-5.json.gz"}


def test_force_never_deletes_a_folder_that_is_not_ours(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for place in ("out", "."):
        outcome = tracelens("split", trace, "-o", place, "--force")
        assert (outcome.code, outcome.lines[2]) == (2, "  Name another folder with -o.")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"
    assert trace.is_file()


def test_an_output_below_a_file_is_refused(tracelens: Command, trace: Path) -> None:
    outcome = tracelens("split", trace, "-o", trace / "out")
    assert outcome.code == 2
    assert outcome.lines[1] == "  The output folder cannot be made: one of the folders in its path is a file."


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder in which nothing can be made")
def test_an_output_where_nothing_can_be_made_is_refused(tracelens: Command, trace: Path) -> None:
    outcome = tracelens("split", trace, "-o", "/proc/self/out")
    assert outcome.code == 2
    assert outcome.lines[1].startswith("  The output folder cannot be made: ")


def test_a_disk_that_fills_up_is_told_in_words_and_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands for the full disk: the first larger one fails while it is written."""
    limited = (
        "import resource, signal, sys; from tracelens_infer.cli.main import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "split", str(trace), "-o", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: {tmp_path / 'out'}",
        "  The output cannot be written: File too large.",
        "  Make room for it, or name another folder with -o.",
    ]
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]


# -- inputs ----------------------------------------------------------------------------------------------------------


def gz(data: bytes) -> bytes:
    return gzip.compress(data)


def plain(data: bytes) -> bytes:
    return data


def members(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(512)


@pytest.mark.parametrize("packed", [gz, plain, members])
@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "run.zip", "run"])
def test_compression_is_told_by_content(
    packed: Callable[[bytes], bytes], name: str, tracelens: Command, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(packed(steps_of_kinds().text().encode()))
    assert tracelens("split", name, "-o", "out").code == 0
    assert manifest_of(tmp_path / "out")["steps"] == 40


def test_zip(tracelens: Command, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deep/run.json", steps_of_kinds().text())
    assert tracelens("split", "run.zip", "-o", "out").code == 0
    assert manifest_of(tmp_path / "out")["steps"] == 40


@pytest.mark.parametrize("packed", [gz, plain])
def test_standard_input(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = packed(steps_of_kinds().text().encode())
    command = [sys.executable, "-m", "tracelens_infer", "split", "-", "-i", "2:5"]
    done = subprocess.run(command, input=data, capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith(b"-\n")
    assert files(tmp_path / "stdin_split") == {*ALWAYS, "iterations_2-5.json.gz"}
    assert manifest_of(tmp_path / "stdin_split")["source"]["name"] == "-"


def test_a_pipe_with_a_name(tracelens: Command, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'w').write({steps_of_kinds().text()!r})"])
    try:
        assert tracelens("split", pipe, "-o", "out").code == 0
    finally:
        writer.wait()
    assert manifest_of(tmp_path / "out")["steps"] == 40


def test_the_written_traces_can_be_split_again(tracelens: Command, trace: Path, tmp_path: Path) -> None:
    assert tracelens("split", trace, "-i", "5:25", "-o", "first").code == 0
    assert tracelens("split", "first/iterations_5-25.json.gz", "-i", "all", "-o", "second").code == 0
    first, second = (
        read_events(tmp_path / name) for name in ("first/iterations_5-25.json.gz", "second/iterations_0-20.json.gz")
    )
    assert first == second
    assert manifest_of(tmp_path / "second")["steps"] == 20


# -- several traces --------------------------------------------------------------------------------------------------


def test_several_traces_have_a_folder_each(tracelens: Command, ranks: Path, tmp_path: Path) -> None:
    outcome = tracelens("split", "ranks", "-i", "0:2")
    assert outcome.code == 0
    assert outcome.lines == [
        "warning: Of 5 ranks these are missing: 1, 4. [2]",
        "warning: Less than half of the other ranks' events are in ranks/rank3.json.gz; cut short?",
    ]
    for rank in (0, 2, 3):
        assert manifest_of(tmp_path / f"rank{rank}_split")["source"]["rank"] == rank


def test_several_traces_below_one_folder(tracelens: Command, ranks: Path, tmp_path: Path) -> None:
    outcome = tracelens("split", "ranks/rank[02]*", "ranks/rank3.json.gz", "-i", "0:2", "-o", "out", "--json")
    assert outcome.code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank0", "rank2", "rank3"]
    assert [manifest["folder"] for manifest in json.loads(outcome.out)] == ["out/rank0", "out/rank2", "out/rank3"]
    assert tracelens("split", "ranks", "-i", "0:2", "-o", "out").code == 2
    assert tracelens("split", "ranks", "-i", "0:2", "-o", "out", "--force").code == 0


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (["a/run.json", "b/run.json"], ["a_run.json", "b_run.json"]),
        (["a/x/run.json", "b/x/run.json"], ["a_x_run.json", "b_x_run.json"]),
        (["run.json", "run.json.gz"], ["{}_run.json", "{}_run.json.gz"]),
        (["a/run.json", "a/other.json"], ["other", "run"]),
    ],
)
def test_traces_of_one_name_are_told_apart(
    names: list[str], folders: list[str], tracelens: Command, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        steps_of_kinds().write(tmp_path, name)
    assert tracelens("split", *names, "-i", "0:2", "-o", "out").code == 0
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == [folder.format(tmp_path.name) for folder in folders]


def test_a_trace_named_twice_is_split_once(tracelens: Command, ranks: Path, tmp_path: Path) -> None:
    assert tracelens("split", "ranks/rank0*", "ranks/rank0.json.gz", "-i", "0:2", "-o", "out").code == 0
    assert (tmp_path / "out" / "split.json").is_file()


def test_one_that_fails_does_not_keep_the_others_from_being_split(
    tracelens: Command, ranks: Path, tmp_path: Path
) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    maker.write(ranks, "rank1.json")
    (ranks / "rank4.json").write_text("")
    outcome = tracelens("split", "ranks", "-i", "0:2")
    assert outcome.code == 4  # that of the first failure
    assert outcome.lines[0] == "error: ranks/rank1.json"
    assert "error: ranks/rank4.json" in outcome.lines
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("_split")) == [
        f"rank{rank}_split" for rank in (0, 2, 3)
    ]


def test_notes_name_their_trace_where_there_are_several(tracelens: Command, tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        maker = steps_of_kinds()
        maker.kernel(50, 5, correlation=999)
        maker.write(tmp_path, name)
    lines = tracelens("split", "one.json", "two.json").lines
    assert [line.split(": ")[1] for line in lines] == ["one.json", "two.json"]


# -- nothing found ---------------------------------------------------------------------------------------------------


def test_a_trace_without_steps_ends_with_4_and_what_was_seen(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(6):
        maker.label(f"iteration {number}", 100 * number, 50)
    outcome = tracelens("split", maker.write(tmp_path), "-o", "deep/out")
    assert (outcome.code, outcome.out, len(outcome.lines)) == (4, "", 3)
    assert "one of a step: iteration # (6)." in outcome.lines[1]
    assert not (tmp_path / "deep").exists()


def test_an_empty_trace_ends_with_4(tracelens: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    outcome = tracelens("split", "empty.json")
    assert (outcome.code, outcome.lines[1]) == (4, "  The trace holds no events.")


def test_labels_inside_of_labels_are_told_about(tracelens: Command, tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(10):
        maker.label(vllm(0, 8), 100 * number, 80)
        maker.label(DECODE, 100 * number + 5, 60)
    tracelens("split", maker.write(tmp_path), "-o", "out")
    manifest = manifest_of(tmp_path / "out")
    assert manifest["steps"] == 10
    assert [other["detector"] for other in manifest["rejected_candidates"]] == ["annotation:sglang"]
