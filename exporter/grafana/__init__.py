"""Publishing to Grafana: dashboards on command, annotations of verdict changes from the service."""
