"""``steep recall``: how well retrieval finds the gold passages of real questions.

`asked` reads questions with their gold passages, `bases` builds corpus, graph and index, `rows`
runs every variant, `figures` counts, `command` joins them and prints.
"""
