"""The status page of a router: flows, rates, lag, batch times, catalogs and dead letters."""
