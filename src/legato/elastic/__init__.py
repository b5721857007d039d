"""Elastic jobs: a fault ends an epoch, not the job. Survivors muster, form the next epoch and finish the step."""
