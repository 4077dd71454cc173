"""From a plan to an agent that can run."""
