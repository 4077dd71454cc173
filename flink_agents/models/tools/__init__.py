"""Tools that models call: functions, and sources of tools such as servers."""
