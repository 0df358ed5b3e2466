"""The order search at scale: compiled greedy construction and annealing of per-device orders."""
