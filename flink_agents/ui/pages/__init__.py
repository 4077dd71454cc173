"""Pages of the console. Each module has the handlers of one part."""
