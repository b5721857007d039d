"""Hosts with shaped links on one machine, and processes on them."""
