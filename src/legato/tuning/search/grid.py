"""Grid search: every candidate once, then the best."""

from legato.tuning.search.listed import Listed


class Grid(Listed):
    """Of a whole space: certain and slow, as many windows as it has candidates."""
