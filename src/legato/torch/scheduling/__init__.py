"""The schedule of a model: hooks on its modules and parameters, and its optimizer, step by step."""
