"""All partitions of a broker, as producers, consumers, followers and the controller see them.

``replica_manager`` is the face. Fetches go through ``fetch_service``, ``fetch_contexts`` and
``fetch_reader``; what cannot be answered yet waits in ``waiting`` as a ``delayed`` request; orders
of the controller are carried out in ``role_changes``.
"""
