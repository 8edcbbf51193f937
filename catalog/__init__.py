"""Read catalogs of any dialect into one model. Imports neither Spark nor a broker client."""
