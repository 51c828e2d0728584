"""What every room needs: clocks, errors, units, files."""
