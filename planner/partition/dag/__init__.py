"""Partitions of layer graphs that are no chains."""
