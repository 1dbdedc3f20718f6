"""Logs that live at random, of which a verification must find nothing: see ``life``."""
