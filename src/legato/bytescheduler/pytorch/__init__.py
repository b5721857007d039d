"""ByteScheduler for PyTorch."""
