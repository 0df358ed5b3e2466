"""The model zoo: networks as lists of layers, and small real datasets. Knows torch only."""
