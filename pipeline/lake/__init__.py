"""Tables that are kept from topics: Parquet folders, Delta and Iceberg, without a jar."""
