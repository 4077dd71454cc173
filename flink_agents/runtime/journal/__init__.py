"""The journal of runs: a record of their effects outside, so that a replay does not repeat them."""
