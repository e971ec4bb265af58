"""Costs that a profile leaves to the shipped one that it is `like`."""

from collections.abc import Mapping
from pathlib import Path

from simcoll.config import yaml_tree
from simcoll.config.yaml_tree import Node
from simcoll.errors import Diagnostic, InputError, did_you_mean
from simcoll.nccl.between_nodes import OF_FAMILY


def with_inherited(tree: Node, shipped: Mapping[str, Path]) -> Node:
    """The tree of a profile with the `kernels` of the one that it is `like`, and what its `transport` leaves to that of
    its `family`.

    Raises InputError if no profile is so named, or that has none.
    """
    return _of_like(_of_family(tree, shipped), shipped)


def _of_family(tree: Node, shipped: Mapping[str, Path]) -> Node:
    family, own = tree.get("family"), tree.get("transport")
    if own is None or family is None or family.value not in shipped:
        return tree
    common = yaml_tree.read(shipped[str(family.value)]).get("transport")
    for key in OF_FAMILY:
        if common and (cost := common.get(key)) and own.get(key) is None:
            tree = yaml_tree.put(tree, f"transport.{key}", cost)
    return tree


def _of_like(tree: Node, shipped: Mapping[str, Path]) -> Node:
    like, own = tree.get("like"), tree.get("kernels")
    if like is None or not isinstance(like.value, str):
        return tree
    if like.value not in shipped:
        problem = f"{like.value!r} is no shipped profile"
        raise InputError([Diagnostic(problem, did_you_mean(like.value, shipped), "like", like.place)])
    costs = with_inherited(yaml_tree.read(shipped[like.value]), shipped).get("kernels")
    if costs is None:
        cure = "name one that has, such as nccl-hopper, or leave 'like' out"
        raise InputError([Diagnostic(f"{like.value!r} has no costs of kernels", cure, "like", like.place)])
    return yaml_tree.put(tree, "kernels", yaml_tree.over(costs, own) if own else costs)
