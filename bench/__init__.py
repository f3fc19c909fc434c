"""Measurements: what the application costs, at which size. Each module runs by itself and cleans up after itself."""
