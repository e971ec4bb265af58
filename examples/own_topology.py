"""A topology of your own, as a networkx graph: eight hosts on a hypercube, with the times of three algorithms."""

import networkx as nx

import simcoll as sc

cube = nx.Graph()
cube.add_nodes_from((f"host{i}", {"kind": "host", "node": i}) for i in range(8))
cube.add_edges_from((f"host{i}", f"host{i ^ bit}") for i in range(8) for bit in (1, 2, 4) if i < i ^ bit)
nx.set_edge_attributes(cube, sc.Link("25 GB/s", "1 us"), "link")
topology = sc.Topology.from_graph(cube, name="cube")

question = sc.Sweep(topology=topology, collective="all_reduce", size=["64 KiB", "64 MiB"])
results = sc.run(question, algorithm=["ring", "halving_doubling", "recursive_doubling"])
print(results)
print(sc.explain(question, algorithm="halving_doubling", size="64 MiB").verdict)
