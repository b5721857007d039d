"""ByteScheduler's interface: `import legato.bytescheduler.pytorch.horovod as bsc` (docs/compatibility.md)."""
