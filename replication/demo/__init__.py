"""``logstore demo``, both acts: a writer that is killed, then a cluster whose leader is killed.

Act one is ``logstore.demo``. Of act two ``failover`` has the order of events, ``stream`` the
producer, ``replicas`` what the files of the brokers say, ``outcome`` and ``tables`` what is told.
``story`` puts the acts together. No other package imports this one; only the command does.
"""
