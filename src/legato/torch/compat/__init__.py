"""What scripts written for Horovod, BytePS, ByteScheduler and DDP call."""
