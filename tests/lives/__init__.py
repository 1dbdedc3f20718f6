"""One name, many logs: nothing of one life may be found in the next."""
