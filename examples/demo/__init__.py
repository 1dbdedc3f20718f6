"""The demo: a writer is killed, then a cluster's leader; in the end Spark reads it all.

``flights`` is the input and ``topic`` the code that a user of the library would write: open, append
the missing rest, compare. The acts are ``writer_killed`` (``writer`` is the process that gets
killed, ``victim`` its parent's side), ``leader_killed`` (``stream`` is the producer, ``replicas``
reads the files of the brokers) and ``spark_asked``; ``__main__`` puts them together.
"""
