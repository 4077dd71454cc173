"""Random programs of an agent, with crashes, replayed from what they recorded.

    python -m tests.random_programs --programs 10000 --seed 1

A program is a list of inputs of a few keys, and for each a tree of what its action does: memory,
durable calls of all kinds, tasks, timers and races (``programs``). It runs once without a crash, and
then with a crash at some of the points at which it waits: the store fails at an append in one of several
ways, or the operator is thrown away while an action or a call waits. The operator is restored from a
checkpoint, inputs come again, perhaps in another order, and the program goes on. Functions and the
store take random times. What has to hold, ``oracle`` says; what the outside knows, ``world``.

A failure prints the program, and the command that runs it again.
"""
