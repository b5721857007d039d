"""The doctor: what a job finds on its hosts and between them, and what a step would take there."""
