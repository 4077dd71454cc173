"""Executes plans: an engine-free core, and its adapter to PyFlink's ``KeyedProcessFunction``.

The package ``flink`` imports PyFlink; all others are the core, which ``flink_agents.testing`` drives without
a JVM. ``AGENTS.md`` lists the packages from the top down.
"""
