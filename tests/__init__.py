"""Tests of the project; those that import one another do so from here."""
