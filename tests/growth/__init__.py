"""What an operation costs at 1, 4 and 16 times its size, in counts that do not depend on the machine."""
