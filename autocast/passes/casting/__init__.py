"""Where casts go: a plan for every binding, a cut that chooses, a module with its casts, and a report."""
