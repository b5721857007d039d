"""The benchmark: systems side by side on the testbed, over the cells of a recipe's grid. See docs/benchmark.md."""
