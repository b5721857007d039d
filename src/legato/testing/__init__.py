"""What tests of legato, and of what is built on it, need: contract suites and ranks as threads."""
