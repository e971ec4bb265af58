"""The network: devices and directed links, the routes between devices, and the shipped systems and fabrics.

Converts the key `topology` of a scenario, or a networkx graph, into a `Topology` with routes.
"""
