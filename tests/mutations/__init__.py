"""Puts defects back, to check that random programs find them.

    python -m tests.mutations --programs 300

Each mutation of ``table`` and ``waits`` changes one function of the runtime in a new process, in which
programs run until one fails. For ``waits``, the programs pause and wait for signals; for ``models``, they are
random conversations (``tests.random_chats``). A mutation that no program finds is a failure: either the
programs do not execute the changed code, or the runtime does not need it. So is one without a target.
"""
