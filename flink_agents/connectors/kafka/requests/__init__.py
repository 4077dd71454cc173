"""The topic of approval requests: pending requests, their answers, and their outcomes."""
