"""What a broker does unasked, proven from outside: ``logstore serve`` as a process of its own, a
client, and the files. No module of the broker is looked into."""
