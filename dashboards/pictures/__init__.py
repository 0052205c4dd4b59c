"""Pictures of the dashboards by a renderer of our own, over a real Prometheus: to look at them where no Grafana is.

They show what each panel's queries return, drawn simply. They are not what Grafana would draw.
"""
