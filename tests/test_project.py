"""What holds for the project as a whole: its public names, its pages, its command line's documentation."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import tracelens_infer

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md")])

# Names that a module may import for its own use without a leading underscore.
OWN_USE = {"annotations", "TYPE_CHECKING"}
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Folders of one person's or one machine's disk: a path into them means nothing to anyone else.
MACHINE_PATH = re.compile(r"(?<![\w./<>*$}-])/(?:home|root|Users|work|workspace|opt|mnt|tmp|private|srv)/[\w.-]+")


def module_names() -> list[str]:
    """List every module of the package, the one that runs when it is imported left out."""
    found = pkgutil.walk_packages(tracelens_infer.__path__, prefix="tracelens_infer.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def local_links(page: Path) -> Iterator[Path]:
    """Yield the files that a page links to."""
    for target in MARKDOWN_LINK.findall(page.read_text(encoding="utf-8")):
        path, _, _ = target.partition("#")
        if path and "://" not in target and not target.startswith("mailto:"):
            yield (page.parent / path).resolve()


def project_pages() -> list[Path]:
    """List the pages of the project itself, not those of what is installed into it."""
    return [page for page in PAGES if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)]


def tracked_files() -> list[Path]:
    """List what is, or is about to be, under version control."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the project is not under git here")
    return sorted(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


def commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield each command below a group as the words that a user types."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


def test_public_names_are_those_in_all() -> None:
    loaded = {
        name
        for name, value in vars(tracelens_infer).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in OWN_USE
    }
    assert loaded - set(tracelens_infer.__all__) == set()
    missing = [name for name in tracelens_infer.__all__ if not hasattr(tracelens_infer, name)]
    assert missing == []


def test_public_names_have_a_docstring() -> None:
    values = {name: getattr(tracelens_infer, name) for name in tracelens_infer.__all__}
    silent = [name for name, value in values.items() if callable(value) and not (value.__doc__ or "").strip()]
    assert silent == []


@pytest.mark.parametrize("name", module_names())
def test_every_module_says_what_it_is_and_keeps_its_all(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    exported = getattr(module, "__all__", [])
    assert [public for public in exported if not hasattr(module, public)] == []
    assert len(exported) == len(set(exported))


def test_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"]  # hatchling takes it from the package
    assert importlib.metadata.version("tracelens-infer") == tracelens_infer.__version__
    assert f"## [{tracelens_infer.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+", pin)] == []
    pinned = {normal_name(pin.partition("==")[0]) for pin in pins}
    names = {normal_name(re.split(r"[\[<>=!~ ;]", requirement)[0]) for requirement in asked}
    assert names - pinned - {"tracelens-infer"} == set()


def normal_name(name: str) -> str:
    """Spell a distribution's name as the index does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_page_of_docs_is_linked() -> None:
    entrances = [README, *(ROOT / "docs").glob("README.md"), *(ROOT / "docs").glob("index.md")]
    linked = {target for page in entrances for target in local_links(page)}
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*") if page.is_file()}
    assert pages - linked - {page.resolve() for page in entrances} == set()


@pytest.mark.parametrize("page", project_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [str(target) for target in local_links(page) if not target.exists()] == []


def test_every_command_is_in_the_readme() -> None:
    cli = importlib.import_module("tracelens_infer.cli.main").cli
    text = README.read_text(encoding="utf-8")
    names = [" ".join(words) for words in commands(cli, ("tracelens",))]
    assert names, "the command line has no commands"
    assert [name for name in names if name not in text] == []


def test_every_exit_code_is_in_the_readme() -> None:
    errors = importlib.import_module("tracelens_infer.errors")
    codes = {getattr(errors, name).exit_code for name in errors.__all__}
    text = README.read_text(encoding="utf-8")
    assert [code for code in sorted({0, *codes}) if f"| {code} |" not in text] == []


def test_every_sample_trace_is_described(sample_traces: Path) -> None:
    text = (sample_traces / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in sample_traces.glob("*.gz") if path.name not in text] == []


def test_no_file_names_a_place_on_one_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a trace or another binary file
        found += [f"{path.relative_to(ROOT)}: {match}" for match in MACHINE_PATH.findall(text)]
    assert found == []
