"""The request path, without any I/O library."""
