"""Clients and test suites that others wrote, unmodified, against a broker of ours or a real one."""
