"""The network: devices and directed links, the routes between devices, and the shipped systems and fabrics.

Takes the key `topology` of a scenario, or a networkx graph. Returns a `Topology` with routes.
"""
