"""Where a rank computes."""
