"""Op lists to times and exact memory."""
