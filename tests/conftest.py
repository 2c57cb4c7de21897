"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

PROJECT_ROOT = Path(__file__).resolve().parent.parent
SHARED_TRACES_VARIABLE = "TRACELENS_SHARED_TRACES"

# A slow or busy machine is no reason for a failure; hypothesis' own profile for CI stays the base where it is active.
settings.register_profile("project", parent=settings(), deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Return the folder that holds pyproject.toml."""
    return PROJECT_ROOT


@pytest.fixture(scope="session")
def sample_traces() -> Path:
    """Return the folder of the sample traces that come with the project."""
    return PROJECT_ROOT / "traces"


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Return the folder of the large real traces, which do not come with the project; skip where it is absent."""
    told = os.environ.get(SHARED_TRACES_VARIABLE)
    folder = Path(told) if told else PROJECT_ROOT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no folder of large real traces: set {SHARED_TRACES_VARIABLE} to one")
    return folder
