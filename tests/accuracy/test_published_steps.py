"""Tables of published training steps: `simcoll steps`."""

from __future__ import annotations

from pathlib import Path

import pytest

import simcoll
from simcoll.accuracy.published_steps import keys_of, predicted, rows_of
from simcoll.errors import InputError
from tests.helpers import command

TABLE = """\
id,task,model,layers,hidden,ffn,mlp_mats,heads,kv_heads,vocab,seq_len,gpu,gpus,framework,compute_dtype,sharding,tp,pp,micro_batch,global_batch,activation_ckpt,d_step_time_s
a,pretrain,small,2,1024,4096,3,8,8,32000,2048,H100,8,NeMo,bf16,ddp_zero1,2,1,1,32,none,0.05
b,pretrain,small,2,1024,4096,3,8,8,32000,2048,H100,8,NeMo,bf16,,1,2,1,32,,0.05
c,lora,small,2,1024,4096,3,8,8,32000,2048,H100,8,NeMo,bf16,,1,1,1,32,none,1
d,pretrain,small,2,1024,4096,3,8,8,32000,2048,H100,8,NeMo,bf16,,1,1,,32,none,1
e,pretrain,small,2,1024,4096,3,8,8,32000,2048,K80,8,NeMo,bf16,,1,1,1,32,none,1
f,pretrain,small,2,1024,4096,3,8,8,,2048,A100,8,NeMo,bf16,,1,1,1,32,none,1
g,pretrain,small,2,1024,4096,3,8,8,32000,2048,A100,8,NeMo,fp8,,1,1,1,32,none,1
h,pretrain,small,2,1024,4096,3,8,8,32000,2048,A100,8,nobody's,bf16,,1,1,1,32,none,1
i,pretrain,small,2,1024,4096,3,8,8,32000,2048,NVIDIA A100-SXM4-40GB,8,NeMo,bf16,,1,1,1,32,none,1
j,pretrain,small,2,1024,4096,3,8,8,32000,2048,A100,8,,bf16,,2,1,1,32,none,1
"""
MEMORY = """\
job_id,model,layers,hidden,ffn,heads,kv_heads,vocab,tied,seq_len,gpus,dp,tp,pp,micro_batch,grad_accum,zero_stage,status,mem_alloc_GB
1,nanotron_a,4,2048,8192,32,32,131072,True,4096,8,8,1,1,1,2,1,Success,9
2,nanotron_a,4,2048,8192,32,32,131072,True,4096,8,8,1,1,64,2,0,OOM,
"""


def test_a_row_has_the_answer_of_the_same_step_asked_elsewhere() -> None:
    """The prediction of a row is that of its scenario, to the last digit, and the summary adds up."""
    document = predicted(TABLE, "table.csv")
    by_row = {point["row"]: point for point in document["points"]}
    ((_, row), *_) = rows_of(TABLE, "table.csv")
    keys, _ = keys_of(row)
    (again,) = simcoll.run(keys).rows()
    assert by_row["a"]["predicted_s"] * 1e6 == again["step_us"]
    assert by_row["a"]["mfu"] == again["mfu"]
    errors = [abs(point["error"]) for point in by_row.values() if point["error"] is not None]
    assert document["summary"]["mape"] == pytest.approx(100 * sum(errors) / len(errors))
    assert (document["summary"]["rows"], document["summary"]["refused"]) == (10, 5)


@pytest.mark.parametrize(
    "row, reason",
    [
        ("a", "ok"),
        ("b", "ok; recomputation is not stated: none"),
        ("c", "refused: the task is lora"),
        ("d", "refused: micro_batch is not stated"),
        ("e", "refused: the GPU 'K80' is unknown"),
        ("i", "ok; the GPU 'NVIDIA A100-SXM4-40GB': as A100-40GB"),
        ("j", "ok; the framework is not stated: as megatron"),
        ("f", "refused: vocab is not stated"),
        ("g", "a100 does not compute in fp8"),
        ("h", 'ok; the framework "nobody\'s" is unknown: as torchtitan'),
    ],
)
def test_a_row_that_says_too_little_is_refused_with_the_reason(row: str, reason: str) -> None:
    """The status says what is missing, or what was assumed."""
    (point,) = predicted(TABLE, "table.csv", [f"id={row}"])["points"]
    assert reason in point["status"]
    assert (point["predicted_s"] is None) == ("refused" in point["status"])


@pytest.mark.parametrize(("speed", "late"), [("458.1", False), ("425.3", True)])
def test_a_slow_test_of_the_network_tells_of_late_hosts(speed: str, late: bool) -> None:
    """The notes of nanotron's rows tell what an all-reduce in a node reached; slow ones are of busy hosts."""
    ((_, row),) = rows_of(TABLE, "table.csv", ["id=a"])
    notes = f"framework's own test: all-reduce 50.0 GB/s over all GPUs, {speed} GB/s all-reduce in the node"
    keys, _ = keys_of({**row, "framework": "nanotron", "notes": notes})
    assert keys["workload"]["framework"].get("late_hosts", False) == late


def test_jax_computes_blocks_again_unless_a_row_says_otherwise() -> None:
    """MaxText's and Pax's default is to recompute; the row says that it was assumed."""
    ((_, row),) = rows_of(TABLE, "table.csv", ["id=b"])
    keys, assumed = keys_of({**row, "framework": "MaxText (JAX)"})
    assert keys["workload"]["recompute"] == "full"
    assert assumed == ["recomputation is not stated: full"]


def test_a_table_of_memory_is_judged_by_what_fits() -> None:
    """A table without times compares memory, and what ran out of it."""
    document = predicted(MEMORY, "memory.csv")
    assert [point["fits"] for point in document["points"]] == [True, False]
    assert document["summary"]["fits_right"] == 1
    assert document["summary"]["mape"] is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "right"),
    [("llm_foundry", 0.95), ("nanotron", 0.95), ("memory_nanotron", 0.95), ("megatron_seqsel", 1), ("mlperf_v51", 1)],
)
def test_steps_that_ran_fit(table: str, right: float) -> None:
    """What ran fitted into memory; what ran out of it did not."""
    path = command.ROOT / f"validation/steps/{table}.csv"
    assert predicted(path.read_text(encoding="utf-8"), path.name)["summary"]["fits_right"] >= right


def test_the_command_prints_rows_and_json(tmp_path: Path) -> None:
    """The first line is the verdict; refused rows come with their reasons; --json has the document."""
    table = tmp_path / "steps.csv"
    table.write_text(TABLE)
    shown = command.simcoll("steps", table, "--where", "id=a,c")
    assert shown.out.startswith("1 of 2 rows predicted; mean error")
    assert "the task is lora" in shown.out
    document = command.simcoll("steps", table, "--where", "id=a", "--json").json
    assert set(document["points"][0]) >= {
        "row",
        "measured_s",
        "predicted_s",
        "error",
        "low_s",
        "mfu",
        "memory_GB",
        "fits",
    }


@pytest.mark.parametrize(
    "text, where, words",
    [
        ("a,b\n1,2\n", (), "has no column layers"),
        (TABLE, ("gpux=H100",), "did you mean 'gpu'"),
        (TABLE, ("gpu=V100",), "gpu is A100, H100, K80"),
    ],
)
def test_a_wrong_table_is_refused(text: str, where: tuple[str, ...], words: str) -> None:
    """A table of something else, and a condition that keeps nothing, are errors that say what is there."""
    with pytest.raises(InputError, match=words):
        predicted(text, "table.csv", where)
