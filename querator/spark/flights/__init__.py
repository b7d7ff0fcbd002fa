"""The example on real data, `querator spark demo`: flights from CSV through queues to a report.

The modules and sub-packages:

    archive   the archive of flights, as Spark reads it
    delays    the counts of flights, which must agree on both sides
    driver    the Spark program of the demo
    page      the report of the demo
    settings  messages between the demo and its Spark program
"""
