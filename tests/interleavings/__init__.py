"""A deterministic explorer of interleavings of one log; see docs/interleavings.md."""
