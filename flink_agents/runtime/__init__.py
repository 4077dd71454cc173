"""Executes plans: an engine-free core, and its adapter to PyFlink's ``KeyedProcessFunction``.

The room ``flink`` imports PyFlink; all others are the core, which ``flink_agents.testing`` drives
without a JVM. ``AGENTS.md`` shows the rooms from the top down.
"""
