"""Taking bytes out of a log, and closing it: truncation, retention, deletion, the clean stop."""
