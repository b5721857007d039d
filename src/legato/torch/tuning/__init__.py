"""Measuring a model while it trains, and changing its plan or its transport."""
