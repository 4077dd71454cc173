"""What the other packages of ``api`` share: names, values, places, policies, the current context."""
