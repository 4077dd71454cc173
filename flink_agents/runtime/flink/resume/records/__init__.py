"""The folder of a local job: its job run, checkpoints, inputs, and the position of its journal."""
