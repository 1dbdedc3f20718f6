"""What every other room may use: types, errors, configuration, and the seams for time and
randomness.
"""
