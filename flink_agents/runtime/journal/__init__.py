"""The journal of runs: what they did outside, so that a replay does it not again.

``records``  what stands in the records of a run
``calls``    the calls of one execution of an action, matched with their records
``order``    which input belongs to which recorded run
``journals`` the journals of all keys of a subtask, and the store behind them
"""
