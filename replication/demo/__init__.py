"""``logstore demo``: a writer is killed, then a cluster's leader; in the end Spark reads it all.

Act one is ``logstore.demo``. Of act two ``failover`` has the order of events, ``stream`` the
producer, ``replicas`` what the files of the brokers say, ``outcome`` and ``tables`` what is told.
Act three is ``analysis``. ``story`` puts the acts together. No other package imports this one; only
the command does.
"""
