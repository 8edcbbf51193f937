"""``xrouter tap``: a live sample of records with their verdicts, read beside the router.

It has consumers of its own, at topics and at the inbox, and judges what they give by the plan of the settings, in the
columns that ``run`` judges. The running router is asked for nothing: a tap that served from inside of it would have to
carry records out of workers and JVM on the path of the batches, to show them at a port, to whoever has its token. Here
whoever may read the sources sees them, nothing is paid while nobody taps, a tap that is slow or stuck holds up itself
alone, and it works while the router is held, away, or not yet installed. The price: sinks are not asked, so a rejection
by one is not shown, and what is not durable anywhere (in a topic or the inbox) cannot be shown.
"""
