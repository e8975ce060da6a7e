"""The pages about runs: the HTML report of one, and the comparison of several."""
