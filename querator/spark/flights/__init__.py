"""The example on real data, `querator spark demo`: flights go from CSV through queues into an
archive of Parquet, and a report is made of it.

`delays` is what is counted, `driver` the Spark program, `page` the report.
"""
