"""``steep browse``: the pairs, trajectories, graphs and comparisons of a run as web pages.

Input: the outputs of a run in the stage store. `sources` finds them, `index` builds a side table of
one row per trajectory in the cache, `filters` and `queries` answer from that table by SQL,
`site` reads single records from Parquet, and `app` serves the pages of `templates`. Nothing is
written to the run.
"""
