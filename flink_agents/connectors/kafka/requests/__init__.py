"""The topic of requests for approvals: which are pending, what was answered, and how each ended."""
