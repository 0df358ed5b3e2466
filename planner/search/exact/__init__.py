"""CP-SAT models of orders, devices and stash choices."""
