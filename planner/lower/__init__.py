"""Compute orders to complete op lists, and plans over more or fewer micro-batches."""
