"""``Cluster``: several brokers in one process, for services and for tests."""
