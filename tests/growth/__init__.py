"""What an operation costs at 1, 4 and 16 times its size, in counts of what it does."""
