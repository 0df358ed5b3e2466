"""Cutting the layer graph into stages."""
