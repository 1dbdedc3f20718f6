"""Fuzzers of the native kernels: hostile bytes and arguments, compared with the plain twins."""
