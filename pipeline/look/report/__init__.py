"""The HTML report of a run, and the results of several runs for their comparison."""
