"""Named schedules, as order generators."""
