"""The console: pages that show what agents do, and take answers for runs that wait."""
