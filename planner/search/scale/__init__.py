"""Problems of which few candidates can be tried."""
