"""The digital twin: a job as the simulator sees it, and the search for its best plan."""
