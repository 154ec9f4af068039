"""What is measured: names, instruments, spans, logs and the record of each request."""
