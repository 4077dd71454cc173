"""Finds the tests that find each mutation: ``python -m tests.mutations --suite``.

1. ``reach`` records once which tests execute which lines. The result is kept in ``build/mutations``.
2. For each mutation, only the tests that reach the changed lines run, each time in a process that is forked
   after all imports.
3. ``kills.json`` lists the test functions that find each mutation. ``--check`` runs these.
"""
