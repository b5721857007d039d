"""Tuners that try candidates on real steps and keep the best."""
