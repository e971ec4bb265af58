"""Choose a schedule for a machine, and write it as a program that MSCCL's executor runs."""

from pathlib import Path

import simcoll as sc

question = sc.Sweep(topology="hgx-h100", collective="all_reduce", size="1 MiB", executor="msccl")
advice = sc.recommend(question, among=["ring", "two_shot", "all_pairs", "hierarchical"])
print(advice.verdict)
choice = advice["recommendations"][0]["ranges"][0]
schedule = sc.build("all_reduce", choice["algorithm"], 8)
sc.prove(schedule)
program = sc.export(schedule, "msccl", protocol=choice["protocol"])
Path("all_reduce.xml").write_text(program)
print(f"all_reduce.xml: {program.count('<step ')} steps of {program.count('<tb ')} thread blocks")
