"""Ranks that do not wait for each other in every step: staleness, local steps, backups."""
