"""Recording and alert rules as typed data, the options of a site, and the documents made of both."""
