"""Training steps: `template: training` against closed forms, and against the joint simulation of all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import simcoll as simcoll_command

import simcoll
from simcoll.config.yaml_tree import Place, located
from simcoll.errors import InputError
from simcoll.explanation.training_advice import StepSearch, explained_step
from simcoll.prediction.predict import predict
from simcoll.prediction.training_step import check_memory, step_of
from simcoll.scenario.scenario_files import Point, load, points
from simcoll.workload.compute import compute_of, frameworks
from simcoll.workload.rank_layout import layout_of
from simcoll.workload.training_memory import memory_of
from simcoll.workload.training_plan import COMPUTING, NOTHING, Planner, Unit, cost
from simcoll.workload.training_plan import PARTS as PARTS_OF_COST
from simcoll.workload.transformer import Attention, Beside, Exchange, Gemm, Split, Transformer, block

FREE = {"fabric": "single-switch", "link": {"bandwidth": "100000 GB/s", "latency": "0 us"}}  # links that cost nothing
SMALL = {"layers": 8, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 1024}
PARTS = ("compute_us", "bubble_us", "wait_us", "optimizer_us", "interference_us")
EXPOSED = tuple(f"exposed_{dimension}_us" for dimension in ("tp", "pp", "dp", "ep", "cp"))


def load_points(scenario: dict[str, Any]) -> list[Point]:
    """Return the points of a scenario given as a mapping."""
    return points(located(scenario, Place("scenario", 1, 1)))


def step(hosts: int = 4, topology: Any = None, **keys: Any) -> Any:
    """Return the row of a step of a small model."""
    spec = {
        "template": "training", "model": SMALL, "gpu": "h100", "batch": {"global": 8, "sequence": 1024},
        "memory": "ignore", **keys,
    }  # fmt: skip
    return simcoll.run({"topology": topology or {**FREE, "hosts": hosts}, "workload": spec})[0]


def planner(parallel: dict[str, Any], call_ps: int = 0, **keys: Any) -> Planner:
    """Return the planner of a step of SMALL without launches or ends, each of whose calls takes equally long."""
    work = {"template": "training", "gpu": "h100", "parallel": parallel, "framework": {"cuda_graphs": True},
            "batch": {"global": 8, "sequence": 4096}, **keys, "model": {**SMALL, **keys.get("model", {})}}  # fmt: skip
    (point,) = load_points({"topology": {**FREE, "hosts": 4}, "workload": work})
    spec = step_of(point.scenario)
    made = compute_of("h100", cuda_graphs=True)
    return Planner(spec, layout_of(spec, 4, 4), made, lambda call: call_ps)


@pytest.mark.parametrize("kind, chunks", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
@pytest.mark.parametrize("passes", [4, 8])
def test_the_bubble_is_that_of_the_closed_form(kind: str, chunks: int, passes: int) -> None:
    """With equal stages and calls that take no time the bubble is (p − 1) / (m · v + p − 1) of the time, exactly."""
    batch, schedule = {"global": passes, "sequence": 4096}, {"kind": kind, "stages_per_rank": chunks}
    plan = planner({"pp": 4}, batch=batch, schedule=schedule)
    block = plan.unit("dense", 0)
    ends = Unit("end", "none", block.block, {}, lambda phase: NOTHING)
    ends.costs.update(dict.fromkeys(block.costs, NOTHING))
    plan.made |= {("embedding", 0, "none"): ends, ("head", 3, "none"): ends}
    timed = plan.planned().timed()
    parts = timed.breakdown(0)
    assert parts["bubble"] * (passes * chunks + 3) == 3 * (timed.time_ps - plan.optimizer_ps(0))
    assert not parts["wait"]


def test_ring_attention_hides_what_its_passes_compute() -> None:
    """cp passes of attention, one causal and the others half of it; a message beside each but the last shows what it
    takes longer than the pass."""
    cp, moves = 4, 10**9
    plan = planner({"cp": cp}, moves)
    (ring,) = (each for each in plan.unit("dense", 0).block.forward if isinstance(each, Beside))
    assert (len(ring.passes), ring.sends) == (cp, cp - 1)
    assert sum(core.flop for core in ring.passes) == pytest.approx(cp * ring.passes[0].flop)
    took = [plan.attention_ps(core) for core in ring.passes]
    assert plan.cost_of(ring, 0) == cost(attention=sum(took), cp=sum(max(0, moves - each) for each in took[:-1]))


@pytest.mark.parametrize("moves", [1, 10**12])
def test_gradients_hide_exchanges_of_sequence_parallelism(moves: int) -> None:
    """Of the six exchanges of a block's backward pass, two gather gradients; a layer's input comes beside the gradient
    of the input, which leaves beside the gradient of the weights: these four show what they take longer."""
    plan = planner({"tp": 4}, moves, overlap={"tensor": False})
    costs, unit = plan.unit("dense", 0).costs["backward"], plan.unit("dense", 0)
    beside = [each for each in unit.block.backward if isinstance(each, Beside)]
    shown = [max(0, moves - sum(plan.cost_of(each.passes[0], 0))) for each in beside]
    assert (len(shown), costs[PARTS_OF_COST.index("tp")]) == (4, 2 * moves + sum(shown))


@pytest.mark.parametrize(
    "sharding, gathered, reduced", [("none", 0, 1), ("zero1", 1, 1), ("zero2", 1, 2), ("fsdp", 4, 2)]
)
def test_the_volume_of_zero(sharding: str, gathered: int, reduced: int) -> None:
    """In a step of two micro batches ZeRO-1 reduces gradients once and gathers parameters once, ZeRO-2 reduces them
    after each pass, and ZeRO-3 (FSDP) also gathers parameters in each forward and backward pass."""
    plan = planner({"dp": 4, "sharding": sharding})
    moved = {"gather": 0, "reduce": 0}
    for each in plan.planned().operations:
        if each.call:
            moved[each.kind] += each.call.nbytes
    parameters = sum(plan.parameters(0))
    assert moved["gather"] == pytest.approx(2 * gathered * parameters, rel=1e-4)  # of 2 bytes
    assert moved["reduce"] == pytest.approx(4 * reduced * parameters, rel=1e-4)  # of 4 bytes


def test_recomputing_each_second_block_costs_half() -> None:
    """`recompute_every: 2` adds half of what recomputation adds, and keeps half of what it saves."""
    ways = [{}, {"recompute": "full", "recompute_every": 2}, {"recompute": "full"}]
    rows = [step(hosts=1, batch={"global": 1, "sequence": 4096}, **way) for way in ways]
    for name in ("step_us", "memory_activations_GB", "hfu"):
        none, half, full = (row[name] * (row["step_us"] if name == "hfu" else 1) for row in rows)
        block = (none - full) / SMALL["layers"] if name == "memory_activations_GB" else 0  # which is computed again
        assert half == pytest.approx((none + full) / 2, rel=1e-6, abs=block)


def test_recomputing_by_operation_repeats_every_second_product() -> None:
    """Of q, k, v, out, gate, up and down, the backward pass computes k, out and up again, and no attention; it keeps
    half of the activations."""
    none, some = (planner({}, recompute=way, model={"kv_heads": 4}) for way in ("none", "operations"))
    block = some.unit("dense", 0, "operations").block
    products = [(each.n, each.k) for each in block.recomputed if isinstance(each, Gemm)]
    assert products == [(256, 1024), (1024, 1024), (4096, 1024)]
    assert not any(isinstance(each, Attention) for each in block.recomputed)
    kept = [memory_of(each).activations for each in (none, some)]
    assert kept[1] < kept[0]
    again = 2 * 4096 * 8 * 8 * 1024 * (256 + 1024 + 4096)
    rows = [step(hosts=1, batch={"global": 8, "sequence": 4096}, model={**SMALL, "kv_heads": 4}, recompute=way)
            for way in ("none", "operations")]  # fmt: skip
    flop = [row["hfu"] * row["step_us"] for row in rows]
    assert flop[1] / flop[0] - 1 == pytest.approx(again / (some.spec.model.flop(4096) * 8))


@pytest.mark.parametrize("framework, collective", [("megatron", "reduce_scatter"), ("nanotron", "all_reduce")])
def test_zero1_reduces_whole_gradients_that_are_added_up_apart(framework: str, collective: str) -> None:
    """A framework that adds up gradients beside the buckets all-reduces them with ZeRO-1, too."""
    plan = planner({"dp": 4, "sharding": "zero1"})
    plan.compute = compute_of("h100", framework)
    assert {call.collective for call in plan.gradient_calls(0, plan.units(0, 0))} == {collective}


@pytest.mark.parametrize("recompute", ["none", "selective", "operations", "full"])
def test_more_communication_leaves_computation_as_it_is(recompute: str) -> None:
    """Exchanges that take longer change no computing time, launches included; what they add is exposed."""
    keys = {"recompute": recompute, "framework": {"name": "nanotron"}}
    parallel = {"cp": 2, "tp": 2, "context": "all-gather"}
    plans = [planner(parallel, call_ps, **keys) for call_ps in (0, 10**6, 10**9)]
    for each in plans:
        each.compute = compute_of("h100", "nanotron")
    found = [each.planned().timed().breakdown(0) for each in plans]
    for name in COMPUTING:
        assert len({parts[name] for parts in found}) == 1, name


def test_experts_get_their_tokens_by_the_calls_for_tokens() -> None:
    """Each mixture dispatches and combines its tokens in the forward pass, and combines and dispatches gradients in
    the backward pass; `pairwise` takes as long as the all_to_all of their bytes."""
    plan = planner({"ep": 4}, model={"experts": 8, "active_experts": 2})
    block = plan.unit("mixture", 0).block
    ways = [[each for each in phase if isinstance(each, Exchange)] for phase in (block.forward, block.backward)]
    assert [[each.collective for each in way] for way in ways] == [["moe_dispatch", "moe_combine"]] * 2
    call = plan.call_of(ways[0][0], 0)
    own = {"topology": {"system": "hgx-h100", "gpus": 4}, "dtype": "bfloat16"}
    tokens = {"tokens": 4096, "hidden": 1024, "topk": 2, "experts": 8}
    assert call.nbytes == 4096 * 2 * 1024 * 2
    (sent,) = simcoll.run({**own, "collective": "all_to_all", "size": f"{call.nbytes} B"})
    del own["dtype"]
    (moved,) = simcoll.run({**own, "collective": "moe_dispatch", "moe": tokens, "executor": "pairwise"})
    assert moved["time_us"] == sent["time_us"]


@pytest.mark.parametrize(
    "parallel",
    [{"tp": 4}, {"dp": 4}, {"pp": 4}, {"cp": 4}, {"tp": 2, "pp": 2}, {"dp": 4, "sharding": "fsdp"},
     {"dp": 2, "pp": 2, "sharding": "zero1"}],
)  # fmt: skip
def test_the_parts_add_up_to_the_step(parallel: dict[str, Any]) -> None:
    """Compute, bubble, waiting, optimizer, interference and exposed communication are the step, to the picosecond."""
    row = step(parallel=parallel)
    assert sum(row[name] for name in (*PARTS, *EXPOSED)) == pytest.approx(row["step_us"], abs=1e-6)
    kinds = ("gemm", "attention", "elementwise", "launch")
    assert sum(row[f"compute_{kind}_us"] for kind in kinds) == pytest.approx(row["compute_us"], abs=1e-6)


def test_free_links_expose_nothing() -> None:
    """On links that cost nothing, communication adds less than a thousandth."""
    row = step(parallel={"tp": 2, "dp": 2}, batch={"global": 8, "sequence": 4096})
    assert sum(row[name] for name in EXPOSED) < 1e-3 * row["step_us"]


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"parallel": {"tp": 3}}, "cannot be divided by"),
        ({"parallel": {"tp": 4}, "model": {**SMALL, "heads": 2}}, "2 heads cannot be divided by tp 4"),
        ({"parallel": {"pp": 4}, "model": {**SMALL, "layers": 1}}, "1 layers are fewer than 4 parts"),
        ({"parallel": {"ep": 4}}, "without experts"),
        ({"parallel": {"dp": 3}}, "leave out dp, or write dp: 4"),
        ({"parallel": {"dp": 4}, "batch": {"global": 6, "sequence": 1024}}, "a batch of 6 sequences"),
    ],
)
def test_what_does_not_divide_is_refused_in_words(keys: dict[str, Any], words: str) -> None:
    """Degrees that do not divide what they share are an error that names both."""
    with pytest.raises(InputError, match=words):
        step(**keys)


@pytest.mark.parametrize(
    "keys, near",
    [
        ({"parallel": {"tp": 2, "pp": 2}}, 1e-3),
        ({"parallel": {"cp": 2, "tp": 2}}, 0),
        ({"parallel": {"cp": 4, "context": "all-gather"}}, 0),
        ({"parallel": {"dp": 4, "sharding": "fsdp"}}, 0),
        ({"parallel": {"dp": 4, "sharding": "hsdp", "shard_group": 2}}, 0),
        ({"parallel": {"dp": 4, "sharding": "zero1"}, "overlap": {"parameters": False, "gradients": True}}, 0),
        ({"parallel": {"pp": 2, "dp": 2}, "schedule": {"kind": "zero-bubble"}}, 1e-3),
        ({"parallel": {"ep": 4}, "model": {**SMALL, "experts": 4, "active_experts": 2}}, 0),
    ],
)
def test_one_rank_of_a_stage_stands_for_all(keys: dict[str, Any], near: float) -> None:
    """The joint simulation of all ranks ends at the same picosecond as the plan of one rank of each stage, if calls of
    different dimensions do not overlap. A sender is taken to wait for the arrival of its message: a latency longer."""
    machine = {"fabric": "single-switch", "hosts": 4, "link": {"bandwidth": "50 GB/s", "latency": "1 us"}}
    spec = {
        "template": "training", "model": SMALL, "gpu": "h100", "batch": {"global": 8, "sequence": 1024}, **keys,
        "overlap": {"tensor": False, "gradients": False, **keys.get("overlap", {})},
    }  # fmt: skip
    few, every = (simcoll.run({"topology": machine, "workload": spec, "shortcuts": way})[0] for way in ("on", "off"))
    assert few["step_us"] == pytest.approx(every["step_us"], rel=near, abs=0)


def test_stages_of_equal_computation_count_the_head() -> None:
    """A head that costs four blocks takes the place of the last stage's: 5, 5, 5, 1 blocks in place of 4, 4, 4, 4."""
    model = {"layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "vocab": 131072}  # nanotron's 1.34B
    keys = {
        "topology": {"system": "hgx-h100"},
        "ranks": 4,
        "workload": {
            "template": "training",
            "model": model,
            "parallel": {"pp": 4},
            "batch": {"global": 64, "sequence": 4096},
            "memory": "ignore",
        },
    }
    rows = simcoll.run(keys | {"workload": keys["workload"] | {"schedule": {"balance": ["layers", "compute"]}}}).rows()
    layers, compute = (row["step_us"] for row in rows)
    assert compute == pytest.approx(layers * (5 * 64 + 15) / (8 * 64 + 12), rel=0.12)


@pytest.mark.parametrize(("tp", "graphs"), [(1, False), (4, False), (4, True)])
def test_late_hosts_hold_up_ranks_that_wait_for_each_other(tp: int, graphs: bool) -> None:
    """Late hosts make a step longer where ranks of a tensor-parallel group launch kernels, and not with CUDA graphs."""
    keys = {"parallel": {"tp": tp}, "model": {**SMALL, "hidden": 512, "ffn": 2048}}
    frames = [{"name": "nanotron", "cuda_graphs": graphs, "late_hosts": late} for late in (False, True)]
    prompt, late = (step(**keys, framework=frame)["step_us"] for frame in frames)
    assert (late > prompt) == (tp > 1 and not graphs)


@pytest.mark.parametrize("parallel", [{"pp": 4}, {"dp": 2, "pp": 2}])
def test_the_bubble_is_that_of_the_stage_that_computes_most(parallel: dict[str, int]) -> None:
    """The last stage computes the loss, too. It sets the pace, waits for no slower stage, and is in the bubble for as
    long as the others fill and drain the pipeline."""
    timed = planner(parallel, batch={"global": 32, "sequence": 4096}, model={"vocab": 256_000}).planned().timed()
    stages = parallel["pp"]
    assert timed.busiest == stages - 1
    assert timed.breakdown(stages - 1)["wait"] == 0 < timed.breakdown(0)["wait"]


def test_recomputation_stops_at_the_last_tensor_that_is_needed() -> None:
    """PyTorch's checkpoints recompute all of a block but its last product, and what follows it; Megatron's all."""
    model = Transformer(layers=1, hidden=1024, ffn=4096, heads=8, vocab=1000)
    whole, stopped = (block(model, Split(), 1, 512, recompute="full", stops=stops) for stops in (False, True))
    assert whole.recomputed == whole.forward
    missing = whole.forward[len(stopped.recomputed) :]
    assert [(each.n, each.k) for each in missing if isinstance(each, Gemm)] == [(1024, 4096)]
    work = {"recompute": "full", "batch": {"global": 1, "sequence": 4096}, "hosts": 1}
    rows = [step(**work, framework={"name": name}) for name in ("megatron", "torchtitan")]
    every, some = (row["hfu"] / row["mfu"] for row in rows)
    assert every > some > 1


STEP = {
    "topology": {"system": "hgx-h100"},
    "ranks": 4,
    "workload": {
        "template": "training", "model": {**SMALL, "experts": 0}, "parallel": {"tp": 2, "pp": 2, "sharding": "zero1"},
        "batch": {"global": 4, "sequence": 1024},
    },
}  # fmt: skip


def test_explain_adds_up_and_answers_what_if() -> None:
    """The parts of `explain` are the step; a change that the answer promises gives the same time if asked for."""
    document = explained_step(load_points(STEP)[0])
    assert simcoll.explain(STEP, what_if=False)["points"] == [{**document, "what_if": []}]
    assert sum(part["time_us"] for part in document["parts"]) == pytest.approx(document["time_us"])
    changed = next(each for each in document["what_if"] if each["change"] == "tp 1 in place of 2")
    work = {**STEP["workload"], "parallel": {"tp": 1, "pp": 2, "sharding": "zero1"}}
    assert simcoll.run({**STEP, "workload": work})[0]["step_us"] == pytest.approx(changed["time_us"])


def test_a_step_has_no_algorithms_to_choose_among() -> None:
    """Names of algorithms are an error, not ignored."""
    with pytest.raises(InputError, match=r"^among=: a training step has no algorithms to choose among; leave"):
        simcoll.recommend(STEP, among=["foo"])


def test_explain_tries_other_experts_parallelism_and_kernels() -> None:
    """Where tokens move to experts, other degrees and DeepEP's kernels are simulated, as if asked for."""
    work = {**STEP["workload"], "model": {**SMALL, "experts": 8, "active_experts": 2}, "parallel": {"ep": 4}}
    document = explained_step(load_points({**STEP, "workload": work})[0])
    found = {each["change"]: each["time_us"] for each in document["what_if"]}
    assert "ep 2 in place of 4" in found
    (row,) = simcoll.run({**STEP, "workload": {**work, "executor": "deepep"}})
    assert row["step_us"] == pytest.approx(found["executor deepep"])


def test_more_nodes_than_memory_holds_are_refused_at_once() -> None:
    """The work for each rank begins only once their number is known to be feasible."""
    (point,) = load_points({"topology": {"system": "hgx-h100", "nodes": 10**8}, "workload": STEP["workload"]})
    with pytest.raises(InputError, match=r"100000000 nodes of hgx-h100 .* GB of memory"):
        predict(point.scenario)


def test_a_misspelt_machine_of_a_model_is_one_mistake() -> None:
    """The GPU that the machine would name is no second one."""
    with pytest.raises(InputError) as caught:
        load_points({**STEP, "topology": {"system": "hgx-h1000"}})
    (mistake,) = caught.value.diagnostics
    assert "did you mean 'hgx-h100'" in str(mistake)


def test_recommend_finds_the_best_choice_that_fits() -> None:
    """The best choice is no slower than the step asked about, all choices fit, and margins count from the best."""
    document = StepSearch(load_points(STEP)[0]).document()
    assert simcoll.recommend(STEP)["choices"] == document["choices"]
    times = [choice["step_us"] for choice in document["choices"]]
    assert times == sorted(times) and times[0] <= simcoll.run(STEP)[0]["step_us"]
    assert all(choice["memory_GB"] <= choice["memory_limit_GB"] for choice in document["choices"])
    assert [round(time / times[0] - 1, 9) for time in times] == [round(c["margin"], 9) for c in document["choices"]]


def test_a_step_is_the_same_at_every_door(tmp_path: Path) -> None:
    """Command line, YAML and Python, on a shipped machine and on a file that says the same, to the last digit."""
    path = tmp_path / "step.yaml"
    path.write_text(json.dumps(STEP), encoding="utf-8")
    done = simcoll_command("run", path, "--json")
    machine = tmp_path / "machine.yaml"
    machine.write_text("{system: hgx-h100, nodes: 1}\n", encoding="utf-8")
    rows = [simcoll.run(STEP)[0], simcoll.run(path)[0], simcoll.run({**STEP, "topology": str(machine)})[0]]
    assert {row["time_ps"] for row in rows} == {round(json.loads(done.out)["points"][0]["time_us"] * 1e6)}


def test_zero_shares_the_memory_of_the_kinds_it_names() -> None:
    """ZeRO-1 divides the optimizer's state by dp, ZeRO-2 the gradients too, ZeRO-3 (FSDP) the parameters too."""
    kinds = ("optimizer", "gradients", "parameters")
    rows = [step(parallel={"dp": 4, "sharding": way}) for way in ("none", "zero1", "zero2", "fsdp")]
    for shared, row in enumerate(rows):
        for number, kind in enumerate(kinds):
            factor = 4 if number < shared else 1
            assert row[f"memory_{kind}_GB"] * factor == pytest.approx(rows[0][f"memory_{kind}_GB"], rel=1e-3)


def test_a_step_that_does_not_fit_is_refused_with_what_would() -> None:
    """70B on one GPU each is refused, with the memory that it needs; in a sweep its row says so."""
    big = {**STEP, "workload": {**STEP["workload"], "model": "llama3-70b", "parallel": {"dp": 4}}}
    with pytest.raises(InputError, match=r"GB of a GPU's 80 GB, [0-9]* GB for optimizer; take more tensor"):
        simcoll.run(big)
    assert simcoll.run({**big, "workload": {**big["workload"], "memory": "ignore"}})[0]["memory_GB"] > 1000


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"gpu": "H100"}, "did you mean 'h100'"),
        ({"parallel": {"sharding": "FSDP"}}, "did you mean 'fsdp'"),
        ({"model": "gpt4"}, "no transformer, and no mapping of shapes; choose from: deepseek-v3, "),
    ],
)
def test_words_in_capitals_and_unknown_models_have_a_cure(keys: dict[str, Any], words: str) -> None:
    """A name that differs in capitals alone is offered; the list of models is a sentence of its own."""
    with pytest.raises(InputError, match=words):
        step(**keys)


def test_the_type_of_a_step_is_the_one_that_it_computes_in() -> None:
    """`dtype` of collectives does not set a step's types: it is refused, and the column says what computes."""
    assert step(dtypes={"compute": "fp8"})["dtype"] == "fp8"
    with pytest.raises(InputError, match="write `dtypes` below `workload`"):
        simcoll.run({**STEP, "dtype": "bfloat16"})


def test_a_point_without_an_answer_is_named_by_what_was_swept() -> None:
    """The text names the degree that does not fit, not the algorithm."""
    work = {**STEP["workload"], "model": "llama3-8b", "parallel": {"tp": [1, 4]}}
    document = simcoll.run({**STEP, "workload": work})
    assert any(note.startswith("tp 1: failed") for note in document.notes), document.notes


def test_scores_of_unfused_attention_take_memory_whatever_the_framework() -> None:
    """Memory follows the way in which attention is computed, as time does."""
    ways = [{"name": name, "attention": attention} for name in ("megatron", "megatron-2022")
            for attention in ("unfused", "unfused-deepspeed", "flash")]  # fmt: skip
    memory = [step(framework=way)["memory_activations_GB"] for way in ways]
    assert memory[:3] == memory[3:]
    assert memory[0] == memory[1] > memory[2]


def test_a_step_has_an_interval_where_its_gpu_was_measured() -> None:
    """`run` and `explain` give the 90 % interval of the framework; a GPU that differs only in its memory
    from one with a measured table has it, too; others have none."""
    row = step(framework={"name": "composer"})
    ends = row["low_us"] / row["step_us"], row["high_us"] / row["step_us"]
    assert ends == pytest.approx(frameworks()["composer"].holds)
    assert step(gpu="h200")["low_us"]
    assert step(gpu="gb200")["low_us"] is None
    explained = explained_step(load_points(STEP)[0], what_if=False)
    assert explained["low_us"] == simcoll.run(STEP)[0]["low_us"]


@pytest.mark.parametrize("name", ["llama3-70b-256", "llama3-405b-16384", "gpt3-1024-a100", "llama2-70b-fsdp"])
def test_shipped_steps_are_not_refused_for_their_memory(name: str) -> None:
    """Each shipped step fits, or says that the estimate of its memory does not hold."""
    for point in load(name):
        scenario = point.scenario
        spec = step_of(scenario)
        compute = compute_of(spec.gpu or "", spec.framework.name)
        planner = Planner(spec, layout_of(spec, 8 * (scenario.topology.nodes or 1), 8), compute, lambda call: 0)
        check_memory(planner, memory_of(planner))


def test_ranks_vary_only_where_all_are_simulated() -> None:
    """A rank that is slow in some runs is refused with replicas, and slows the joint simulation."""
    work = {**STEP["workload"], "model": {**SMALL, "layers": 2}, "overlap": {"tensor": False}}
    varied = {**STEP, "workload": work, "variability": {"slow": [{"rank": 0, "factor": 2}]}, "replications": 2}
    with pytest.raises(InputError, match="write `shortcuts: off`"):
        simcoll.run(varied)
    row = simcoll.run({**varied, "shortcuts": "off"})[0]
    assert row["time_us_p50"] > 1.2 * row["step_us"]
