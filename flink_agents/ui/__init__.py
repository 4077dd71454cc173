"""The console: web pages that show runs of agents, and take answers for runs that wait."""
