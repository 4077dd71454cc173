"""The journal of runs: a record of their effects outside, so that a replay does not repeat them.

``records``  the contents of records ``calls``    the calls of one execution of an action, matched with their
records ``order``    the order in which inputs meet recorded runs ``journals`` the journals of all keys of a
subtask, and their store
"""
