"""One rank's op list, interpreted."""
