"""What is fast, against whom: ``make bench`` measures ratios side by side and asserts equal results.

Every row runs our code and a peer on the same work in one process, in turn, at least five times,
and gives the median of the ratios of neighbouring runs. A ratio survives a busy machine, absolute
times do not. Benchmarks are no tests: they assert that results agree and never a time.
"""
