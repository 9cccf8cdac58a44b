"""What runs (one folder, one deployable) and what those share."""
