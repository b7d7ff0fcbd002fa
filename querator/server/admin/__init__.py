"""The admin port: metrics and probes over HTTP.

It only observes the node; calls that change something belong into `server.calls`.

    admin_server        the HTTP server: /metrics, /livez, /readyz
    admin_view          the parts of a node that the admin port observes
    health              whether the node lives, and whether it is ready
    metric_catalogue    every metric with its help text and labels
    metrics             makes the metrics of a node at a scrape
    queue_metrics       counts of a node's queues, read from its storage
"""
