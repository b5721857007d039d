"""Launching a job: ranks by torchrun's agent, servers beside them, on one host or on several (`legato run`)."""
