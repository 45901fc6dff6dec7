"""Topics as the tables of a Spark catalog."""
