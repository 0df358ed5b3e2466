"""What every room needs: errors, units, how files are read and written, deadlines."""
