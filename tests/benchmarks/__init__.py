"""How fast, and in how much memory? ``python -m tests.benchmarks``; docs/performance.md says what is measured."""
