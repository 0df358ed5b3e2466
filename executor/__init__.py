"""Runs plans: stage programs, transports, the interpreter, the profiler. Knows torch and the plan's types."""
