"""The search for plans: exact CP-SAT models and the portfolio around them."""
