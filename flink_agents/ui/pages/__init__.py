"""The pages: each module has the handlers of one part of the console."""
