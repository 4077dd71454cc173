"""Defects that are put back, to see that random programs find them.

    python -m tests.mutations --programs 300

Each mutation of ``table`` and ``waits`` changes one thing of the runtime in a process of its own, where
programs run until one fails; those of ``waits`` with programs that pause, and wait for signals, those of
``models`` with random conversations (``tests.random_chats``). A mutation
that nothing finds is a failure: either the programs never come to what it breaks, or the runtime does not
need what it takes away. So is one whose target is gone.
"""
