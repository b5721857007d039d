"""Synchronizers: from a gradient that is ready to its average, over the native engine or a process group."""
