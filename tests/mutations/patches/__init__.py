"""Mutations of the rooms that recovery depends on. The suite has to find them.

    python -m tests.mutations --suite

To point a patch to code that has moved, change the function or the snippet. A patch without a target fails.
"""
