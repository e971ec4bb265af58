"""A data-parallel step of GPT-2 on two H100 nodes: which bucket size hides most of the all-reduces?"""

import simcoll as sc

step = {"template": "ddp", "model": "gpt2", "gpu": "h100", "batch": 4, "first_bucket": "same"}
results = sc.run(
    topology={"system": "hgx-h100", "nodes": 2},
    dtype="bfloat16",
    workload={**step, "algorithm": "auto", "bucket_cap": ["4 MiB", "16 MiB", "64 MiB", "256 MiB"]},
)
print(results)
best = min(results, key=lambda row: row["step_us"])
print("best bucket:", best["workload.bucket_cap"], f"exposed {best['exposed_us'] / best['step_us']:.1%} of the step")
results.plot(x="bucket_cap", y="step").figure.savefig("ddp_step.svg")
