"""Other people's methods, modelled from their papers, for comparison in one run."""
