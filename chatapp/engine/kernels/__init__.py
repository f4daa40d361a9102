"""What multiplies: linear layers, their precision, threads and devices."""
