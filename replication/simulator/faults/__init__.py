"""What goes wrong in a schedule, and when."""
