"""Legato schedules the communication of data-parallel training so that it hides behind computation."""

__version__ = "0.1.0"
