"""What people see of efa-pulse's metrics: dashboards as code with their generated JSON, recording and alert rules, runbooks.

Nothing here imports the service: boards and rules know it by the names of its metrics only, and tests hold those against the catalogue.
"""
