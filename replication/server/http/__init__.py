"""Brokers as people and monitoring see them: health, metrics, and one page that moves.

``cluster_state`` takes a picture of some brokers; ``http_server.HttpServer`` serves it as JSON, as
Prometheus text and as a page. ``merged`` makes one picture of those of many
processes, and ``mirror_pages`` has what a mirror shows. Nothing here changes anything: every
request is a read.
"""

from replication.server.http.state import GroupSnapshot, cluster_state

__all__ = ["GroupSnapshot", "cluster_state", "http_server", "merged", "mirror_pages"]
