"""Write down what simcoll answers, to see after a change of its code that all other answers are the same.

    python tools/answers.py OUTDIR [-j N] [--only TEXT]     # every answer, a text file each, and what commands wrote
    python tools/answers.py --compare BEFORE AFTER          # what differs; status 1 if anything does

An answer is what one or more commands print, their exit status, and the files that they write. The commands of an
answer run one after the other, in a process and a folder of their own. Pictures are stored as a hash of their pixels.
Dates, versions, absolute paths and lines of progress are left out (see `normalised`). Only the command line
(`simcoll.cli:main`) and public names of simcoll are used, so the code behind them may move.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from multiprocessing import connection
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = "h100_sxm_nccl-2.27.3.csv --where dtype=float16 --where ranks=8"
AT_TWO_SIZES: Final = "--size '[8 KiB, 16 MiB]' --json"
STAR: Final = "topology: {fabric: single-switch, hosts: 8, link: {bandwidth: 50 GB/s, latency: 0.5 us}}\n"
LAYERS: Final = "layers: [{parameters: 4 MiB, forward: 0.5 ms, backward: 1 ms, times: 6}]"

INPUTS: Final = {  # files that commands find in their folder
    "star.yaml": f"name: star\n{STAR}collective: all_reduce\nalgorithm: [naive, ring, tree]\nsize: [4 KiB, 4 MiB]\n",
    "hosts.yaml": STAR.removeprefix("topology: "),
    "pairs.yaml": """name: two-pairs
devices: {gpu: 4, bridge: 1}
links:
  - {from: gpu0, to: gpu1, bandwidth: 100 GB/s, latency: 1 us, kind: nvlink}
  - {from: gpu2, to: gpu3, bandwidth: 100 GB/s, latency: 1 us, kind: nvlink}
  - {from: "gpu*", to: bridge0, bandwidth: 10 GB/s, latency: 2 us, kind: pcie}
""",
    "wrong.yaml": f"nam: x\n{STAR}collective: all_reduc\nalgorithm: rng\nsize: 4 furlongs\n"
    "model: {o_send: 3}\nranks: -1\n",
    "broken.yaml": "name: [x\n",
    "operations.yaml": f"""name: plan
{STAR}workload:
  operations:
    - {{name: a, time: 1 ms}}
    - {{name: b, collective: all_reduce, size: 64 MiB, after: [a], stream: dp, groups: [[0, 1, 2, 3], [4, 5, 6, 7]]}}
    - {{name: c, collective: broadcast, size: 1 MiB, root: 1, algorithm: binomial, stream: other}}
""",
    "ours.csv": "collective,algorithm,ranks,size_bytes,time_us\n"
    + "".join(
        f"all_reduce,{algorithm},{ranks},{size},{round(steps + size * share / 40e3, 2)}\n"
        for ranks in (4, 8)
        for algorithm, steps, share in (("ring", 4 * ranks, 2.0), ("naive", 9, ranks), ("tree", 16, 5.0))
        for size in (1024, 16384, 262144, 4194304)
    ),
    "perf.txt": """# nThread 1 nGpus 8 minBytes 8 maxBytes 8388608 step: 64(factor) warmup iters: 5 iters: 20
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         512           256      half     sum      -1    16.20    0.03    0.06      0    16.10    0.03    0.06      0
       32768         16384      half     sum      -1    18.90    1.73    3.03      0    18.80    1.74    3.05      0
     2097152       1048576      half     sum      -1    41.20   50.90   89.08      0    41.00   51.15   89.51      0
     8388608       4194304      half     sum      -1    96.40   87.02  152.28      0    96.00   87.38  152.92      0
""",
}

ALGORITHMS: Final = {
    "all_reduce": "all_pairs recursive_doubling halving_doubling hierarchical hierarchical_leader hierarchical_tree "
    "naive nvls nvls_tree ring bidirectional_ring ring_unchunked tree double_binary_tree chain_tree two_shot "
    "swing ring_by_dimension recursive_multiplying",
    "all_gather": "direct recursive_doubling bruck hierarchical naive nvls pat ring ring_by_dimension",
    "reduce_scatter": "direct recursive_halving hierarchical naive nvls pat ring ring_by_dimension",
    "all_to_all": "direct bruck hierarchical",
    "gather": "direct binomial",
    "scatter": "direct binomial",
    "send_recv": "direct ring",
    "barrier": "dissemination naive tree",
    "reduce": "naive chain binomial reduce_scatter_gather",
    "broadcast": "naive chain binomial scatter_allgather",
}
SYSTEMS: Final = (
    "a100-pcie a3-mega dgx-a100 dgx1-v100 gb200-nvl72 gh200-4 hgx-a100-4 hgx-a100-4-slingshot hgx-b200 hgx-b300 "
    "hgx-h100 hgx-h100-efa hgx-h200 l40s-pcie loopback mi300x rtx-2080ti rtx-4090 rtx-pro-6000"
)
KERNELS: Final = {  # profiles with NCCL's kernels: systems that they are run on; between nodes the NICs' profiles are
    "nccl": "hgx-h200",
    "nccl-ampere": "dgx-a100 hgx-a100-4-slingshot",
    "nccl-blackwell": "hgx-b200",
    "nccl-hopper": "hgx-h100 hgx-h100-efa gh200-4",
    "nccl-pcie": "l40s-pcie",
    "nccl-pcie-a100": "a100-pcie",
    "nccl-volta": "dgx1-v100",
    "rccl-cdna3": "mi300x",
}
SCENARIOS: Final = {  # shipped scenarios, cut down
    "all-collectives": "size=[64 KiB, 8 MiB]",
    "ddp-buckets": "workload.bucket_cap=[16 MiB, 64 MiB]",
    "dgx-a100": "size=[512 B, 2 MiB]",
    "faults": "size=64 MiB",
    "h100-measured": "size=[512 B, 2 MiB];ranks=[2, 8]",
    "llama3-step": "topology.nodes=2;workload.bucket_cap=256 MiB",
    "oversubscribed-fat-tree": "size=[1 MiB]",
    "quickstart": "size=[1 KiB, 1 MiB]",
    "scaling": "topology.nodes=[1, 4]",
    "stragglers": "replications=6;topology.nodes=2",
    "sub-groups": "size=[1 MiB]",
    "two-node-h100": "size=[64 KiB]",
    "v100-cube-mesh": "size=[1 MiB]",
    "when-to-use-what": "size=[1 KiB, 4 MiB];ranks=[2, 8]",
}
VARIANTS: Final = """\
engines: engine=[event, fast];model.sharing=[fair, fifo];shortcuts=[on, off]
chunks: model.chunk=[whole, 64 KiB];model.channels=[1, 2, per-peer];model.slots=[none, 2]
overheads: model={o_send: 1 us, o_recv: 0.5 us, g: 0.2 us, gamma: 800 GB/s, channel_bandwidth: 20 GB/s};engine=[event,
    fast]
channels-by: model.chunk=64 KiB;model.channels=4;model.channels_by=[chunk, step]
blocking: model.blocking=[true, false, even-odd];algorithm=ring
barrier: model.barrier=[true, false]
profile-tcp: profile=tcp
arrivals: arrivals={3: 50 us};dtype=[float16, int64];op=[max]
weights: collective=all_gather;algorithm=[ring, direct];weights=[1, 2, 3, 4, 5, 6, 7, 8]
proofs: proof=[full, fingerprint, off]
root: collective=[broadcast, reduce, gather, scatter];algorithm=all;root=3
torus: topology={fabric: torus, dims: [2, 4], hosts: 8, link: {bandwidth: {value: 50 GB/s, spread: 20 %}, latency: 1
    us}}
fat-tree: topology={fabric: fat-tree, levels: 3, hosts: 16, hosts_per_leaf: 2, leaves_per_pod: 2, spines: 2, link:
    {bandwidth: 50 GB/s, latency: 1 us}};topology.routing=[ecmp, shortest]
mesh: topology.fabric=[full-mesh, ring]
links: topology.links={"host0->*": {bandwidth: 10 GB/s}};groups=4;algorithm=hierarchical
faults: faults=[{link: "host0->*", at: 20 us, kind: flap, down_for: 50 us, period: 1 ms, times: 5}, {link: "host1->*",
    at: 1 us, kind: slow, factor: 3}, {link: "*->host2", at: 0 us, kind: background, share: 30 %}]
fault-fails: faults=[{link: "host0->*", at: 20 us, kind: down}]
variability: replications=8;seed=[0, 1];variability={launch_skew: {distribution: exponential, mean: 3 us}, slow_links:
    [{link: "host3->*", factor: 4, probability: 50 %}]};size=1 MiB;algorithm=[ring, tree]
random-faults: replications=6;faults=[{link: "host3->*", at: 0 us, kind: slow, factor: 4, probability: 50 %}]
"""  # `--set`s of star.yaml
WORKS: Final = {
    "workload-ddp": f"template: ddp, {LAYERS}, overlap: [true, false], bucket_cap: [none, 8 MiB]",
    **{
        f"program-{name}": f"template: {name}, size: 1 MiB, local: 20 us"
        for name in ("mean", "softmax", "argmax", "scatter", "gather", "broadcast")
    },
}

COMMANDS: Final = """\
predict-text: predict all_reduce --on hgx-h100 --nodes 2 --size '[64 KiB, 64 MiB]' --algorithm '[auto, ring,
    hierarchical]'
predict-all-text: predict all --on dgx-a100 --size '1 MiB' --algorithm all
predict-kernels-text: predict all_reduce --on hgx-h100 --size '[8 KiB, 1 GiB]' --algorithm '[auto, best]' --set
    profile=nccl-hopper
predict-launches: predict all_to_all --on dgx-a100 --size '8 KiB' --set profile=nccl-ampere --set
    'launch.gpus_per_process=[1, 4, 8]'
predict-graph: predict all_reduce --on hgx-h100 --size '8 KiB' --set profile=nccl-hopper --set 'launch.graph=[true,
    false]' --json
predict-versions: predict all_reduce --on hgx-h100 --nodes 2 $SIZES --set profile=nccl-hopper --set
    "library_version=['2.18', '2.23', '2.27']"
predict-p2p-level: predict all_reduce --on a100-pcie $SIZES --set profile=nccl-pcie --set
    'env.NCCL_P2P_LEVEL=[LOC, PHB, SYS]'
predict-env: predict all_reduce --on dgx-a100 --nodes 2 $SIZES --algorithm '[auto, best]' --set profile=nccl-ampere
    --set 'env={NCCL_ALGO: [Ring, ^Ring], NCCL_PROTO: ^LL128, NCCL_MAX_NCHANNELS: [2, 64]}' --json
predict-own-topology: predict all_reduce --on pairs.yaml --size '1 MiB' --algorithm all
predict-streamed: predict all_reduce --on hgx-h100 --nodes 96 --size '64 MiB' --algorithm ring --json
run-streamed: run star.yaml --set topology.hosts=1024 --set algorithm=ring --set 'size=64 MiB' --json && run star.yaml
    --set topology.hosts=1024 --set 'topology.link.bandwidth={value: 50 GB/s, spread: 20 %}' --set algorithm=ring --set
    'size=64 MiB' --set model.sharing=fifo --json && predict all_reduce --on hgx-h100 --nodes 160 --size '80 MiB'
    --algorithm ring --json
predict-compiled: predict all_reduce --on hgx-h100 --nodes 16 --size '64 MiB' --algorithm double_binary_tree --set
    'model.chunk=64 KiB' --set 'model.sharing=[fair, fifo]' --json
predict-compiled-no-numba: predict all_reduce --on hgx-h100 --nodes 8 --size '16 MiB' --algorithm '[ring,
    double_binary_tree]' --set 'model.chunk=128 KiB' --set 'shortcuts=[on, off]' --json
run-text: run star.yaml
run-output-text: run star.yaml -o out && plot out/results.csv -o again && run star.yaml -o out
run-jobs: run star.yaml --jobs 2 --json
run-shards: run star.yaml --shard 1/2 -o out && run star.yaml --shard 2/2 -o out
run-operations: run operations.yaml --json && run operations.yaml
run-stragglers-text: run stragglers --set replications=6 --set topology.nodes=2
run-ddp-text: run ddp-buckets --set workload.bucket_cap='64 MiB'
run-reports: run star.yaml --quiet --report star.html && run ddp-buckets --quiet --set workload.bucket_cap='64 MiB'
    --set workload.algorithm=ring --report ddp.html
run-report-varied: run stragglers --quiet --set replications=4 --set topology.nodes=1 --report varied.html
run-traces: run star.yaml --quiet --set algorithm=ring --set 'size=4 MiB' --trace ring.json && run star.yaml --quiet
    --set algorithm=tree --set 'size=4 KiB' --set model.sharing=fifo --trace 'ranks/{rank}.json.gz' && run
    operations.yaml --quiet --trace plan.json.gz && run quickstart --quiet --set profile=nccl-hopper --set
    algorithm=auto --set 'size=1 MiB' --trace call.json
explain: explain oversubscribed-fat-tree --set algorithm=ring --set 'size=1 MiB' --json && explain
    oversubscribed-fat-tree --set algorithm=ring --set 'size=1 MiB'
explain-call: explain quickstart --set profile=nccl-hopper --set algorithm=auto --set 'size=1 MiB' --json
explain-workload: explain operations.yaml && explain operations.yaml --no-what-if --json
explain-faults: explain faults --set algorithm=ring --no-what-if
recommend: recommend star.yaml --json && recommend star.yaml --among 'ring, tree' -o chosen.json
recommend-kernels: recommend quickstart --set profile=nccl-hopper --set dtype=float16 --set 'size=[1 KiB, 1 MiB]' &&
    recommend quickstart --set profile=nccl-hopper --set 'size=[1 KiB, 1 MiB]' -o t.csv --to nccl-tuner
recommend-workload: recommend ddp-buckets --set 'workload.bucket_cap=[64 MiB, 256 MiB]'
compare: compare system=hgx-h100 $TABLE --json && compare system=hgx-h100 $TABLE --where collective=all_reduce -o out
    && compare star.yaml ours.csv --max-mape 1
compare-pipe: compare system=hgx-h100 - < perf.txt && compare system=hgx-h100 - --json < perf.txt
diagnose: diagnose $TABLE --where collective=all_reduce --topology hgx-h100 --json && diagnose $TABLE --where
    collective=all_gather --topology hgx-h100
diagnose-off: diagnose perf.txt --topology dgx-a100
calibrate: calibrate ours.csv --topology hosts.yaml --free o_send,efficiency -o ours.yaml && run star.yaml --set
    profile=ours.yaml
calibrate-kernels: calibrate $TABLE --where collective=all_gather --topology hgx-h100 --free launch,efficiency -o
    h100.yaml --json
tune: tune hgx-h100 --nodes 2 --json && tune dgx-a100 --nodes 16 --algo 'allreduce:^tree' --proto '^LL128'
tune-others: tune mi300x && tune hgx-h100 --ranks 4 --version 2.20 && tune hgx-b200 --json && tune l40s-pcie --nodes 2
tune-regret: tune hgx-h100 --ranks 4 --version 2.27 --profile nccl-hopper --json
measure-dry: measure star.yaml --ranks 4 --dry-run
verify: verify --ranks 6 && verify --ranks 11 --json && verify all_reduce/ring --ranks 5 && verify no/such
list: list && list algorithms && list collectives && list topologies && list scenarios && list profiles
topology: topology list && topology show hgx-h100 --nodes 2 --png h100.png && topology show dgx1-v100 --json &&
    topology show pairs.yaml
schema: schema
export-schedule: export all_reduce/ring --ranks 4 --to msccl -o ring.xml && import ring.xml -o ring.json && verify
    --schedule ring.json && show ring.json --diagram && export ring.json --to goal --size '1 KiB' && export ring.json
    --to msccl && run star.yaml --set 'algorithm=[ring, ring.json]' --set ranks=4 --json
export-goal: export broadcast/binomial --ranks 6 --root 2 --to goal -o b.goal && import b.goal --json
export-topology: export hgx-a100-4 --nodes 2 --to graphviz && export pairs.yaml --to graphml
export-results: run star.yaml --quiet -o out --set 'algorithm=[ring, tree]' && export out/results.csv --to nccl-tests
    && export out/results.csv --to nccl-tuner && export out/results.csv --to parquet -o r.parquet
export-refused: export barrier/tree --ranks 4 --to msccl && export all_reduce/ring --to msccl && export hgx-h100 --to
    msccl
import-refused: import star.yaml && import broken.yaml --as msccl && import missing.xml
error-scenario: run wrong.yaml && run broken.yaml && run missing.yaml && run quikstart
error-key: run star.yaml --set modl.chunk=1 && run star.yaml --set 'model.chunk=3' && run star.yaml --set nonsense &&
    run star.yaml --set 'model.sharing=rude' && run star.yaml --set 'faults=[{link: none, at: 1 us, kind: down}]'
error-names: predict all_reduce --on hgx-h1000 --size '1 MiB' && predict all_reduse --on hgx-h100 --size '1 MiB' &&
    predict all_reduce --on hgx-h100 --size '1 MiB' --algorithm rng && predict all_reduce --on hgx-h100 --size 1 --set
    profile=x
error-refused: predict all_reduce --on hgx-h100 --ranks 6 --size '1 MiB' --algorithm '[nvls, hierarchical(across=x)]'
    && predict all_reduce --on hgx-h100 --ranks 99 --size '1 MiB' && predict barrier --on hgx-h100 --size '1 MiB'
error-options: run && run star.yaml --bad && run star.yaml --jobs 0 && run star.yaml --shard 1/2 && run star.yaml
    --trace t.json && run star.yaml --report r.pdf && nothing && export all_reduce/ring --to pdf
error-tables: compare star.yaml missing.csv && compare star.yaml star.yaml && calibrate ours.csv --topology hosts.yaml
    --free x -o o.yaml && diagnose ours.csv --topology hgx-h100 && plot missing.csv && tune star.yaml && tune hgx-h100
    --version 1.0
"""  # name: commands; what is indented goes on; what is behind `<` is the input
COMMAND_NAMES: Final = (
    "run predict plot explain recommend compare diagnose calibrate tune measure lab validate import export show verify "
    "list topology schema"
)


def answers() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the name, the commands, and further input files (name → text) of each answer."""
    for name, text in _lines(COMMANDS):
        yield name, text.replace("$SIZES", AT_TWO_SIZES).replace("$TABLE", TABLE), {}
    helps = ["", *COMMAND_NAMES.split(), "topology list", "topology show"]
    yield "help", "\n".join(f"{name} --help" for name in helps) + "\n--version", {}
    for name, sets in SCENARIOS.items():
        yield f"scenario-{name}", f"run {name} {_sets(sets)} --json -o out", {}
    for name, sets in _lines(VARIANTS):
        yield f"star-{name}", f"run star.yaml {_sets(sets)} --json", {}
    for name, work in WORKS.items():
        yield name, "run w.yaml --json", {"w.yaml": f"name: {name}\n{STAR}workload: {{{work}}}\n"}
    for system in SYSTEMS.split():
        two_nodes = "" if system in ("loopback", "gb200-nvl72") else "--nodes 2 "
        once = f"predict all_reduce --on {system} {two_nodes}--algorithm '[auto, ring, hierarchical]' {AT_TWO_SIZES}"
        yield f"predict-on-{system}", f"{once}\ntopology show {system} --json", {}
    for profile, systems in KERNELS.items():
        for system in systems.split():
            for nodes in (1, 2):
                calls = f"predict all --on {system} --nodes {nodes} --set profile={profile} --set dtype=float16"
                choices = f"{calls} {AT_TWO_SIZES} --algorithm all --set 'protocol=[auto, LL, LL128, Simple]'"
                yield f"calls-{profile}-{system}-{nodes}", f"{calls} {AT_TWO_SIZES}\n{choices}", {}
    for collective, names in ALGORITHMS.items():
        for name in names.split():
            what = f"show {collective}/{name}"
            how = ("--ranks 4", "--ranks 6 --json", "--ranks 4 --data", "--ranks 4 --diagram", "--ranks 2,4,8")
            text = "\n".join(f"{what} {options}" for options in how)
            yield f"show-{collective}-{name}", text, {}
    for name, content, made, more in _foreign():
        text = f"import foreign.txt -o {made} {more}\nimport foreign.txt --json {more}"
        yield f"import-{name}", text, {"foreign.txt": content}
    yield "api", "", {}


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the commands of each answer in a text with one answer per line."""
    for line in re.sub(r"\n +", " ", text).splitlines():
        name, _, rest = line.partition(": ")
        yield name, rest.replace(" && ", "\n")


def _sets(text: str) -> str:
    return " ".join(f"--set {shlex.quote(part)}" for part in text.split(";"))


def _foreign() -> Iterator[tuple[str, str, str, str]]:
    """Yield small files of other programs, taken from the tests; none if the tests are not found."""
    for path in sorted(ROOT.glob("tests/**/foreign.py"))[:1]:
        spec = importlib.util.spec_from_file_location("foreign", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.parent))  # it imports others of the helpers
        spec.loader.exec_module(module)
        for name, content in module.FILES.items():
            kinds = {"measured": "made.csv", "msccl": "made.json", "mscclpp": "made.json", "goal": "made.json"}
            made = kinds.get(module.KINDS[name], "made.yaml")
            yield re.sub(r"\W+", "-", name), content, made, shlex.join(module.MORE.get(name, []))


def api() -> None:
    """Call some functions of the Python API, and print what they return."""
    import simcoll

    print(json.dumps(simcoll.__all__), [name for name in simcoll.__all__ if not hasattr(simcoll, name)])
    points = simcoll.load("quickstart", ["algorithm=[ring, tree]", "size=[64 KiB, 1 MiB]"])
    rows = simcoll.run(points)
    print(json.dumps(list(rows), indent=1, default=str))
    rows.to_csv("results.csv")
    print([simcoll.predict(point).time_ps for point in points])
    schedule = simcoll.build("all_reduce", "ring", 3)
    print(schedule)
    print(simcoll.prove(schedule))  # type: ignore[func-returns-value]  # prints None where it holds

    @simcoll.register("broadcast", "star")
    def star(request: Any) -> Iterator[Any]:
        """Yield one step in which the root sends to all other ranks at once."""
        yield simcoll.send(request.root, [rank for rank in range(request.n) if rank != request.root], 0)

    print(simcoll.run(simcoll.load("star.yaml", ["collective=broadcast", "algorithm=star"]))[0])
    keys = {
        "name": "k",
        "topology": {"system": "hgx-h100"},
        "collective": "all_gather",
        "size": "1 MiB",
        "algorithm": "bruck",
    }
    print(simcoll.run(simcoll.load(keys))[0]["time_us"])
    link = simcoll.Link(bandwidth=50 * 10**9, latency_ps=500_000)
    print(link)
    try:
        simcoll.load({"name": "k", "colective": "all_gather"})
    except simcoll.SimcollError as error:
        print(error)


def normalised(text: str, folders: list[tuple[str, str]]) -> str:
    """Return a text without what differs between machines and days: folders, dates, versions, progress."""
    import simcoll

    for folder, name in folders:
        text = text.replace(folder, name)
    text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "<date>", text.replace(simcoll.__version__, "<version>"))
    text = re.sub(r"\b(numpy|scipy|matplotlib|python|torch): [\d.]+\S*", r"\1: <version>", text, flags=re.IGNORECASE)
    text = re.sub(r"^compiling loops for this machine;.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^\d+ of \d+ (points|explanations tried)(; .*)?\n", "", text, flags=re.MULTILINE)


def told(path: Path, folders: list[tuple[str, str]]) -> str:
    """Return the contents of a file as text, or a hash of the pixels of a picture."""
    data = path.read_bytes()
    if path.suffix == ".png":
        from matplotlib.image import imread

        pixels = imread(path)
        return f"png {pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}\n"
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    try:
        return normalised(data.decode(), folders)
    except UnicodeDecodeError:
        return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()}\n"


def run(name: str, text: str, inputs: dict[str, str], out: Path, scratch: Path) -> None:
    """Write one answer; called in a separate process for each."""
    import simcoll
    from simcoll.cli import main

    folder = scratch / name
    folder.mkdir()
    os.chdir(folder)
    for file, content in (INPUTS | inputs).items():
        Path(file).write_text(content)
    if name.endswith("-no-numba"):
        sys.modules["numba"] = None  # type: ignore[assignment]
    package = Path(simcoll.__file__).resolve().parent
    folders = [
        (str(folder), "<cwd>"),
        (str(package), "<package>"),
        (str(package.parent), "<root>"),
        (str(ROOT), "<root>"),
    ]
    printed = []
    for line in text.split("\n") if text else ["<api>"]:
        words, source = shlex.split(line), os.devnull
        if "<" in words:
            source, words = words[-1], words[:-2]
        kept = [scratch / f"{name}.stdout", scratch / f"{name}.stderr"]
        for number, stream in enumerate((Path(source), *kept)):  # as a shell does it, for what is not Python too
            os.dup2(os.open(stream, os.O_RDWR | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY, 0o600), number)
        status: object
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        try:
            if "--jobs" in words:  # its workers would outlive a process that was forked
                status = subprocess.run([sys.executable, "-m", "simcoll", *words]).returncode
            else:
                status = main(words) if text else api()  # type: ignore[func-returns-value]  # None
        except SystemExit as error:
            status = error.code
        except BaseException:
            traceback.print_exc()
            status = "a traceback"
        sys.stdout.flush()
        sys.stderr.flush()
        found = [path.read_text() for path in kept]
        printed.append(f"$ simcoll {line}\n# status {status}\n{found[0]}# stderr\n{found[1]}")
    (out / f"{name}.txt").write_text(normalised("\n".join(printed), folders))
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        relative = path.relative_to(folder).as_posix()
        if relative not in INPUTS | inputs:
            target = out / name / (relative + (".txt" if path.suffix in (".png", ".gz") else ""))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(told(path, folders))
    shutil.rmtree(folder)
    (scratch / f"{name}.cpu").write_text(f"{time.process_time():.2f}")


def write(out: Path, jobs: int, only: str) -> None:
    """Write all answers whose name contains `only`, `jobs` of them at a time."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"COLUMNS": "120", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "agg"}
    _warm()
    asked = [answer for answer in answers() if only in answer[0]]
    fork = multiprocessing.get_context("fork")
    started: list[multiprocessing.process.BaseProcess] = []
    running = started[:]
    with tempfile.TemporaryDirectory() as scratch:
        for answer in asked:
            while len(running) >= jobs:
                connection.wait([process.sentinel for process in running])
                running = [process for process in running if process.is_alive()]
            args = (*answer, out.resolve(), Path(scratch).resolve())
            started.append(fork.Process(target=run, args=args, name=answer[0]))
            started[-1].start()
            running.append(started[-1])
        for process in started:
            process.join()
        cpu = {path.stem: float(path.read_text()) for path in Path(scratch).glob("*.cpu")}
    lost = [process.name for process in started if process.exitcode]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    files = sum(path.is_file() for path in out.rglob("*"))
    print(f"{len(asked)} answers, {files} files, {sum(u.ru_utime + u.ru_stime for u in used):.0f} s of CPU")
    slowest = sorted(cpu, key=lambda name: -cpu[name])[:10]
    print("most of it:", ", ".join(f"{name} {cpu[name]:.1f}" for name in slowest))
    if lost:
        raise SystemExit(f"not written: {', '.join(lost)}")


def _warm() -> None:
    """Import what most answers need, once, before processes are forked."""
    import matplotlib.pyplot  # noqa: F401

    from simcoll.cli import main

    with redirect_stdout(io.StringIO()):
        main(["predict", "all_reduce", "--on", "hgx-h100", "--size", "1 KiB", "--algorithm", "naive"])
        main(["show", "all_reduce/naive", "--ranks", "2"])


def compare(before: Path, after: Path, most: int = 20) -> int:
    """Print the differences between two folders of answers, at most `most`; return 1 if there is any, else 0."""
    names = sorted(
        {path.relative_to(top).as_posix() for top in (before, after) for path in top.rglob("*") if path.is_file()}
    )
    different = 0
    for name in names:
        old, new = (
            (top / name).read_text().splitlines() if (top / name).is_file() else None for top in (before, after)
        )
        if old == new:
            continue
        different += 1
        if old is None or new is None:
            print(f"{name}: only in {after if old is None else before}")
            continue
        lines = list(difflib.unified_diff(old, new, name, name, lineterm="", n=1))
        print(*(line if len(line) <= 200 else line[:200] + " …" for line in lines[:most]), sep="\n")
        if len(lines) > most:
            print(f"… {len(lines) - most} lines more")
    print(f"{different} of {len(names)} files differ")
    return int(different > 0)


def main() -> int:
    """Write or compare answers, as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="OUTDIR")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("-j", dest="jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only answers with this in their name")
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    if asked.folder is None:
        parser.error("which folder?")
    write(asked.folder, asked.jobs, asked.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
