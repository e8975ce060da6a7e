"""``steep recall``: recall of the gold passages of real questions, for every retriever.

`questions` reads questions with their gold passages, `build` makes corpus, graph and indexes,
`compare` runs every retriever, `metrics` computes recall, `run` connects these steps, and `table`
prints the result. The package is above `pipeline.engine` in the layers, because it builds corpus,
graph and indexes with the functions of the stages.
"""
