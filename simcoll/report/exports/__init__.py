"""Results and topologies in the formats of other programs: a writer is a function from rows, or a topology, to text."""
