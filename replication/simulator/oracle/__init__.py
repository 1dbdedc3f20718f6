"""The promises that must hold after every event, and the excuses, each with its reason."""
