"""The dashboard's server: a process of its own that reads run stores and answers a browser."""
