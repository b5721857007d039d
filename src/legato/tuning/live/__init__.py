"""Tuning while training runs: windows of steps, trials, and the guard."""
