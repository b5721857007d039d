"""The C++ engine's Python side: sessions, plans, collective operations."""
