"""The example on real data, `querator spark demo`: flights go from CSV through queues into an
archive of Parquet, and a report is made of the archive.

    archive     counts of the archive, by Spark
    delays      counts and delays of flights, and a counter for the CSV
    driver      the Spark program
    page        the report
    settings    settings and messages between the demo and its Spark program
"""
