"""Planning: costs in, a plan and a bound out. Knows neither torch nor the executor."""
