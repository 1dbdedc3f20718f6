"""The clients of a schedule: producers, consumers, transactions, an admin."""
