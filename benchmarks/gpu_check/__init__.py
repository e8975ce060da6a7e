"""The GPU check: the project's training, engines and indexes on one large GPU, without a network.

Run with ``make gpu-check``, or ``python -m benchmarks.gpu_check``. Models have the shapes of the
published ones and random weights, so that nothing is downloaded. Every part is a process with a
time limit. The figures are written to ``docs/log/gpu.md`` and ``docs/log/gpu.json``.

The check is longer than other benchmarks because a GPU is lent for minutes: each part either has a
figure in ``docs/gpu.md`` or runs code that has met no GPU yet, and all but four of them are
rehearsed on a CPU before.
"""
