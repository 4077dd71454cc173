"""Which tests of the suite find which mutation: ``python -m tests.mutations --suite``.

1. ``reach`` records once which tests execute which lines. It is kept in ``build/mutations`` and resumes.
2. For each mutation, only the tests that reach the changed lines run, each time in a process that is forked
   when everything is imported.
3. ``kills.json`` says which test functions find each mutation. ``--check`` runs the tests that it names.
"""
