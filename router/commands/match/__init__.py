"""``xrouter match``: outcomes of records without Spark, and their explanation."""
