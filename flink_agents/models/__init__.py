"""What makes an agent think: models, tools, retrieval. Needs the extra ``models``."""
