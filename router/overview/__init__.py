"""The status page of a router and what it is made of: flows, rates, lag, time of batches, epochs, dead letters."""
