"""A trace file -> columns."""
