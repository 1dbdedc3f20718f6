"""Random histories of groups against a model."""
