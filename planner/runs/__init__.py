"""What runs did: traces, costs calibrated by them, forecasts against them."""
