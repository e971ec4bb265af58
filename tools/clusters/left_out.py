"""Predict each cluster's calls between nodes as if the cluster had not been measured: only from the other clusters.

The cluster's network (transport) is fitted to other clusters with the same network. If there is none, the common values
of the network's family are used. This shows how well the model predicts a network that nobody measured. The costs of
GPUs do not change. In the same way each node count of a cluster is predicted from its other node counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from clusters import transports
from clusters.rows import ClusterRow, by_profile, fit_to
from clusters.transports import ClusterSamples
from simcoll.accuracy.fit import rows_to_fit
from simcoll.config.grouping import grouped
from simcoll.errors import InputError, RefusedError
from simcoll.measurement.cases_of_points import Tell
from simcoll.prediction.confidence import ModelErrors
from simcoll.scenario.profile import Profile, load_profile

NODE_COUNTS: Final = 3  # of a cluster, from which on two are left where one is left out


def samples_of(rows: Sequence[ClusterRow]) -> list[ClusterSamples]:
    """Return each cluster's rows on several nodes, ready to be timed under other costs of their network."""
    found = []
    for name, own in grouped(
        [row for row in rows if row.nodes > 1 and not row.judges_only], lambda row: row.cluster
    ).items():
        samples, _ = rows_to_fit.of_pairs([(row.row, row.point.scenario) for row in own])
        found.append(ClusterSamples(name, own[0].place, samples, load_profile(own[0].point.scenario.profile)))
    return found


def with_left_out(rows: Sequence[ClusterRow], tell: Tell) -> tuple[list[ClusterRow], dict[str, Profile]]:
    """Add to each row on several nodes the time that a fit to the other clusters predicts. Also return the NIC profile
    of each cluster, by its name, as fitted to the others."""
    start = transports.networks()
    clusters = [each for each in samples_of(rows) if each.transport in start]
    if not clusters:
        return list(rows), {}
    together = transports.lined(clusters, start, tell)
    times: dict[str, list[float]] = {}
    shown: dict[str, Profile] = {}
    for cluster in clusters:
        known, like = together.without(cluster), start[cluster.transport]
        shown[cluster.name] = known.network(like)
        times[cluster.name] = (cluster.times(known.values, like) / 1e6).tolist()
    kin = _kin(clusters, start)
    done = []
    for row in rows:
        if row.nodes > 1 and row.cluster in times:
            time_us = times[row.cluster].pop(0)
            row = dataclasses.replace(row, left_out_us=time_us, kin=kin[row.cluster])
        done.append(row)
    return done, shown


def _kin(clusters: Sequence[ClusterSamples], start: Mapping[str, Profile]) -> dict[str, str]:
    """Return, by cluster, the network that predicts it when left out: its own if others have it, or its family."""
    names = [each.transport for each in clusters]
    families = {name: profile.family or name for name, profile in start.items()}
    return {
        each.name: each.transport if names.count(each.transport) > 1 else families[each.transport] for each in clusters
    }


def with_node_counts_left_out(
    rows: Sequence[ClusterRow],
    tell: Tell,
    networks: Mapping[str, Profile],
    taught: Mapping[str, ModelErrors] | None = None,
) -> list[ClusterRow]:
    """Add to each row the time and interval by a fit to the cluster's other node counts; only for clusters with at
    least NODE_COUNTS node counts. For `networks` and `taught` see `rows.fitted`."""
    done = list(rows)
    for cluster, numbers in grouped(range(len(rows)), lambda i: rows[i].cluster).items():
        own, counts = [rows[i] for i in numbers], grouped(numbers, lambda i: rows[i].nodes)
        for nodes, left in sorted(counts.items()) if len(counts) >= NODE_COUNTS else ():
            tell(f"{cluster}: fitting all but {nodes} node{'s' if nodes > 1 else ''}")
            try:
                text = fit_to(own, [row.nodes != nodes for row in own], networks.get(cluster)).text
            except (InputError, RefusedError) as error:
                tell(f"{cluster}: not fitted: {error}")
                continue
            timed = by_profile(text, [rows[i] for i in left], (taught or {}).get(cluster))
            for i, (time_us, ends) in zip(left, timed, strict=True):
                done[i] = dataclasses.replace(rows[i], other_nodes_us=time_us, other_nodes_ends=ends)
    return done
