"""What goes out: metric families, the pages made of them, and the server that hands them to Prometheus."""
