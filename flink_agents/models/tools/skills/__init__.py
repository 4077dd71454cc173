"""Skills: folders with instructions, files and scripts that a model loads when it needs them."""
