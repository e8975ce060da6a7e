"""Benchmarks against other libraries: ``make bench`` measures ratios of speed.

Every row runs our code and a peer alternately on the same work in one process, at least five times,
and reports the median of the ratios within a round. Ratios are stable on a busy machine; absolute
times are not. Benchmarks assert that results agree and never assert a time.
"""
