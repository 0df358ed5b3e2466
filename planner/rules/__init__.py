"""The checker's rules over op lists. They know no simulator and no solver."""
