"""The native kernels once more in plain Python: slow, easy to read, and the oracle of tests."""
