"""The simulated machines: virtual time, network, disks and coordinator, with the real brokers on
them.
"""
