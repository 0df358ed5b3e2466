"""Named schedules on their best cuts, where there is room and where memory is tight."""
