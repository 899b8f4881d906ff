"""The discrete-event model: replicas, router and the SimPy run. The only home of simpy."""
