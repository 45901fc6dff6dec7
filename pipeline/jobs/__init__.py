"""The jobs of `aerobee pipeline`: each is one function over a SparkSession."""
