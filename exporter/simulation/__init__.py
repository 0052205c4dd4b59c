"""`efa-pulse simulate`: the service's own control loop, planner, judge, localisation and publisher on a simulated fabric."""
