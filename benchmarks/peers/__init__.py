"""Other systems with the same workload: ``python -m benchmarks peers``.

Each peer has a program in ``programs/``, written as its documentation recommends, and its own
environment, which the command makes below ``build/peers`` from the lock in ``locks/``. ``page`` writes
``docs/performance.md`` from the JSON of a run.
"""
