"""One small adapter for each device; found by name through entry points."""
