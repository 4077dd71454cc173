"""The streams that an agent takes its inputs from."""
