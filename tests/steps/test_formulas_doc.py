"""The worked examples of docs/formulas.md give what the page says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

FENCE = re.compile(r"^```.*$", re.MULTILINE)
ALL_EXAMPLES_OF = ("Workload and the expected mix", "Steps")


@pytest.fixture(scope="module")
def page(project_root: Path) -> str:
    return (project_root / "docs" / "formulas.md").read_text(encoding="utf-8")


def failures(text: str) -> tuple[list[str], int]:
    """Run the examples of a page; return what failed and how many were run."""
    # A blank line for each fence ends the expected output there and keeps the line numbers.
    parsed = doctest.DocTestParser().get_doctest(FENCE.sub("", text), {}, "formulas.md", "docs/formulas.md", 0)
    told: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(parsed, out=told.append)
    return told, result.attempted


def test_every_example_gives_what_the_page_says(page: str) -> None:
    told, attempted = failures(page)
    assert "".join(told) == ""
    assert attempted == page.count("\n>>> ")
    assert attempted > 30


def test_a_wrong_example_is_noticed(page: str) -> None:
    told, _ = failures(page.replace("(39.0, 42.4, 256)", "(39.1, 42.4, 256)"))
    assert "(39.1, 42.4, 256)" in "".join(told)


@pytest.mark.parametrize("title", ALL_EXAMPLES_OF)
def test_every_part_has_examples(page: str, title: str) -> None:
    part = page.split(f"\n## {title}\n")[1].partition("\n## ")[0]
    sections = part.split("\n### ")[1:]
    without = [section.splitlines()[0] for section in sections if ">>> " not in section]
    # Only a figure read off one trace is in this one: there is nothing to compute.
    assert [name for name in without if name != "Nested families of annotations"] == []


def test_figures_in_the_tables_are_those_of_the_examples(page: str) -> None:
    for cell in (
        "| 921.6 tokens |",
        "| 0.06944 |",
        "| 9,216 |",
        "| 640 |",
        "| 8,576 |",
        "| 15 |",
        "| 256 |",
        "| 4,480 |",
    ):
        assert cell in page
