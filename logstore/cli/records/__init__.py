"""Records on their way between a log and a pipe or a file: for read, append, export and import."""
