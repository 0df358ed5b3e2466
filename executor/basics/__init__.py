"""What every room needs: errors, options, addresses."""
