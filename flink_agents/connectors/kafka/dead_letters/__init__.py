"""Dead letters in a topic, and how they are handled again."""
