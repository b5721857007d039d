"""Fuzzers: what comes from a socket or a file, changed at random, is taken, or refused with an error of legato's."""
