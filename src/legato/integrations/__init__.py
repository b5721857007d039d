"""Trainers of others, over legato."""
