"""Columns -> iterations -> steps -> the steady state."""
