"""``python -m tracelens_infer``."""

from tracelens_infer.cli.main import main

main()
