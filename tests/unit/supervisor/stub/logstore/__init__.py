"""In the place of the product, in processes that a test lets a supervisor start."""
