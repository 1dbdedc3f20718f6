"""``logstore demo``: a writer is killed, then a cluster's leader; in the end Spark reads it all.

Act one is ``logstore.demo``. Of act two ``failover`` has the order of events, ``stream`` the
producer, ``replicas`` reads the files of the brokers, ``outcome`` and ``tables`` have the results.
Act three is ``analysis``. ``story`` puts the acts together. Only the command imports this package.
"""

__all__ = ["story", "tables"]
