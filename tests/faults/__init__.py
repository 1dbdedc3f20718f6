"""Faults planted in clean log directories, to be found by a verification: see ``planter``."""
