"""An algorithm of your own on topologies of your own, as a figure of a paper."""

import networkx as nx

import simcoll as sc


@sc.register("all_reduce", "star")
def star(request):
    """Everyone sends to rank 0, which sends the sum back: 2 steps."""
    yield sc.send(range(1, request.n), 0, 0, reduce=True)
    yield sc.send(0, range(1, request.n), 0)


machines = []
for name, cable in (("slow ring", "12.5 GB/s"), ("fast ring", "50 GB/s")):
    ring = nx.relabel_nodes(nx.cycle_graph(8), str)
    nx.set_node_attributes(ring, {str(i): {"kind": "host", "node": i} for i in range(8)})
    nx.set_edge_attributes(ring, sc.Link(cable, "1 us"), "link")
    machines.append(sc.Topology.from_graph(ring, name=name))
sizes = {"from": "1 KiB", "to": "16 MiB", "factor": 4}
results = sc.run(topology=machines, collective="all_reduce", algorithm=["star", "ring", "tree"], size=sizes)
axes = results.plot(x="size", y="time", facet="topology")
axes[0].figure.savefig("paper_figure.pdf")
