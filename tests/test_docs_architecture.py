"""docs/architecture.md names every module once, and every file that it sends a reader to exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tracelens_infer"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = ("trace", "steps", "roofline", "report", "cli")
TITLES = {folder: f"{folder}/" for folder in FOLDERS} | {"": "Beside the folders"}

FIRST_CELL = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
FILE = re.compile(r"(?<![\w./])(?:\w+/)*\w+\.(?:py|md)\b")


def section(title: str) -> str:
    """Return what stands under the heading of the third level that begins so."""
    return PAGE.split(f"\n### {title}")[1].partition("\n### ")[0].partition("\n## ")[0]


def test_every_module_is_named_once_under_its_folder() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(TITLES) - {""}
    for folder, title in TITLES.items():
        modules = Counter(path.stem for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")
        named = Counter(name for cell in FIRST_CELL.findall(section(title)) for name in QUOTED.findall(cell))
        assert named == modules, f"docs/architecture.md, {folder or 'beside the folders'}"


def test_every_file_that_is_named_exists() -> None:
    named = set(FILE.findall(PAGE))
    assert {"steps/build.py", "docs/notes.md", "tests/strip_markers.py"} <= named
    places = (PACKAGE, ROOT, ROOT / "docs")
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []
