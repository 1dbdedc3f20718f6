"""Brokers as processes, under faults of machines and networks, and under load of real clients."""
