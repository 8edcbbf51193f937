"""The first files of somebody who starts: settings, a catalog, brokers to try it with."""
