"""The browser of a run: pairs, trajectories, graphs and comparisons as web pages (``steep browse``).

Input: the outputs of a run in the stage store. `sources` finds them, `index` builds a side table of
one row per trajectory in the cache, `filters` and `queries` answer from that table by SQL, `records`
reads single records from Parquet, and `app` serves the pages of `templates`. Nothing is written to
the run.
"""
