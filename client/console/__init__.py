"""The console: a cluster in the browser, by the SDK alone."""
