"""Ingest alone: a process that does nothing but read a trace into columns."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def main(path: str) -> None:
    gc.disable()  # as the command line does, and the floor
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # likewise, before numpy is loaded
    from tracelens_infer.trace.reader import read_trace

    read_trace(Path(path))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
