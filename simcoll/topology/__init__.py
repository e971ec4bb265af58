"""The network: devices and directed links, the routes between devices, and the systems and fabrics that ship.

Takes the key `topology` of a scenario, or a networkx graph. Gives a `Topology` with routes.
"""
