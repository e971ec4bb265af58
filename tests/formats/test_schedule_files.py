"""Schedules of other programs: what is exported comes back, what is read is what they run."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import foreign
import pytest
from command import simcoll
from foreign import brought, read
from hypothesis import given
from hypothesis import strategies as st

import simcoll as api
from simcoll.config.input_files import ImportLog
from simcoll.errors import InputError, RefusedError
from simcoll.formats.schedules import goal, msccl, msccl_writer, mscclpp, schedule_json
from simcoll.schedule import algorithms, registry
from simcoll.schedule.collectives import COLLECTIVES
from simcoll.schedule.schedule import Schedule


def test_a_ring_of_four_is_the_ring(tmp_path: Path):
    """2(n-1)+1 steps a GPU: the imported ring is proved, and takes as long as ours to the picosecond."""
    path, done = brought(tmp_path, foreign.RING)
    assert done.out.count("rrs") == 1 and "proved: 6 steps, 24 messages" in done.out
    steps = re.findall(r"<step", msccl_writer.dump(algorithms.build("all_reduce", "ring", 4)))
    assert len(steps) == 4 * (2 * 3 + 1)
    (tmp_path / "s.yaml").write_text(
        "topology: {system: hgx-h100}\nprofile: one-port\nranks: 4\ncollective: all_reduce\n"
        f"algorithm: [ring, {path}]\nsize: [1 KiB, 1000000 B, 64 MiB]\nmodel: {{sharing: [fair, fifo], channels: 2}}\n"
    )
    rows = simcoll("run", tmp_path / "s.yaml", "--json").json["points"]
    own, others = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert [row["time_us"] for row in own] == [row["time_us"] for row in others]
    assert {row["proved"] for row in rows} == {"full"} and {row["status"] for row in rows} == {"ok"}


EVERY = [(which, name) for which in registry.ALGORITHMS for name in registry.names(which)]


@pytest.mark.parametrize(("which", "name"), EVERY)
@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.long), 4, pytest.param(5, marks=pytest.mark.long)])
def test_what_is_exported_comes_back(which: str, name: str, n: int):
    """Every registered algorithm that the format can hold is the same schedule after export and import; what it cannot
    hold is refused in words."""
    entry = registry.ALGORITHMS[which][name]
    for root in {0, n - 1 if COLLECTIVES[which].rooted else 0}:
        try:
            schedule = algorithms.build(which, name, n, root=root, agents=int(entry.needs_agent))
        except RefusedError:
            continue
        for writer, reader in ((msccl_writer.dump, msccl), (lambda s: goal.dump(s, 1 << 20), goal)):
            try:
                text = writer(schedule)
            except RefusedError as error:
                none = ("barrier", "send_recv", "moe_dispatch", "moe_combine")
                held = which not in none and name not in ("nvls", "nvls_tree", "ring_unchunked")
                assert not held and "; " in str(error)
                continue
            assert read(text, reader) == schedule
        assert schedule_json.parse(schedule_json.dump(schedule), "x") == schedule


@pytest.mark.parametrize("name", ["all_gather/bruck", "all_reduce/halving_doubling", "scatter/binomial"])
def test_a_message_of_several_chunks_is_one_operation(name: str):
    """GOAL has a send for each message, with the bytes of all its chunks. MSCCL has a step for each run of chunks,
    which is read as one message even without the places that we write into it."""
    schedule = algorithms.build(*name.split("/"), 8)
    sent = [int(size) for size in re.findall(r"send ([0-9]+)b", goal.dump(schedule, 8 << 10))]
    assert len(sent) == schedule.messages
    assert sum(sent) == int(schedule.count[schedule.src != schedule.dst].sum()) * (8 << 10) // schedule.n_chunks
    found = read(re.sub(r' at="[\d.]+"', "", msccl_writer.dump(schedule)))
    assert found.messages == int((schedule.src != schedule.dst).sum()) < found.by_slot().count.sum()


SHARED = {"collective": "all_reduce", "algorithm": "own", "ranks": 2, "n_chunks": 8}
RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=3)


def json_of(*transfers: object) -> str:
    """A schedule file with these transfers."""
    return json.dumps({**SHARED, "transfers": transfers})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), RUNS, st.booleans()), max_size=8))
def test_messages_of_any_slots_come_back_from_json(messages: list[tuple[int, int, int, list[tuple[int, ...]], bool]]):
    """Law: transfers of one slot, of a run and of several runs are the same after they are written and read, and what
    is written anew is the same text."""
    rows = [
        (step, src, read, dst, written, reduce, count, place > 0)
        for step, src, dst, runs, reduce in sorted(messages, key=lambda message: message[0])
        for place, (read, written, count) in enumerate(runs)
    ]
    schedule = Schedule.from_rows(rows, collective="all_reduce", algorithm="own", n=2, n_chunks=8)
    assert schedule.transfers == len(messages)
    text = schedule_json.dump(schedule)
    assert schedule_json.parse(text, "x") == schedule and schedule_json.dump(schedule_json.parse(text, "x")) == text


@pytest.mark.parametrize(
    ("read", "written", "said"),
    [
        ([1, 2], 1, r"transfer 1 reads runs of \[2\] slots, but writes runs of \[1\]"),
        ([[1, 2], [5, 1]], [[1, 1], [5, 2]], r"transfer 1 reads runs of \[2, 1\] slots, but writes runs of \[1, 2\]"),
        ([1, -2], [1, -2], r"transfer 1 moves runs of \[-2\] slots; each must have at least one"),
        ([], [], r"transfer 1 moves runs of \[\] slots; each must have at least one"),
        ([-1, 2], [1, 2], r"unknown participant, slot or route in transfer 1 "),
        ([2**31 - 2, 2], [0, 2], r"unknown participant, slot or route in transfer 1 "),
        ([0, 2**31], [0, 2**31], r"its transfers move more than 100000000 slots"),
        ([1, 2, 3], [1, 2, 3], r"transfers.1 is no transfer; write \[step, sender, its slots,"),
        ([[1, 2], [5]], [[1, 2], [6, 1]], r"transfers.1 is no transfer; write \[step, sender, its slots,"),
        ("1", 1, r"transfers.1 is no transfer; write \[step, sender, its slots,"),
    ],
)
def test_wrong_slots_are_one_error(read: object, written: object, said: str):
    """Runs of no length, of unequal lengths, outside the slots that there can be, or of another form."""
    with pytest.raises(InputError) as error:
        schedule_json.parse(json_of([0, 0, [0, 8], 1, [0, 8], 1], [1, 1, read, 0, written, 0]), "own.json")
    assert str(error.value).startswith("own.json:1:1: ") and "\n" not in str(error.value)
    assert re.search(said, str(error.value))


def test_exported_programs_keep_the_executors_rules():
    """A step waits for one other at most, which stands in another thread block of its GPU and is marked; a thread block
    has one peer each way, and no two of a GPU have the same."""
    text = msccl_writer.dump(algorithms.build("all_to_all", "bruck", 8))
    for gpu in text.split("<gpu")[1:]:
        blocks = [block.split("<step")[1:] for block in gpu.split("<tb")[1:]]
        sends = [peer for peer in re.findall(r'send="(-?\d+)"', gpu) if peer != "-1"]
        assert len(set(sends)) == len(sends)
        for number, steps in enumerate(blocks):
            for step in steps:
                depid, deps = map(int, re.search(r'depid="(-?\d+)" deps="(-?\d+)"', step).groups())
                assert depid != number
                assert depid < 0 or 'hasdep="1"' in blocks[depid][deps]


def test_exported_programs_have_room_in_the_executors():
    """With many peers there are several channels, of at most 32 thread blocks of a GPU, and the same at both ends."""
    schedule = algorithms.build("all_to_all", "direct", 34)
    text = msccl_writer.dump(schedule)
    for gpu in text.split("<gpu")[1:]:
        channels = re.findall(r'chan="(\d+)"', gpu)
        assert set(channels) == {"0", "1", "2"} and max(map(channels.count, channels)) <= 32
    schedule = algorithms.build("all_to_all", "direct", 18)
    assert read(msccl_writer.dump(schedule)) == schedule


def test_what_executors_cannot_load_is_said():
    """More than 64 steps in a thread block, or than 64 thread blocks of a GPU, are warned of; less is not."""
    warned = {}
    for name, n in (("ring", 32), ("ring", 34), ("all_pairs", 34), ("all_pairs", 80)):
        notes = ImportLog()
        text = msccl_writer.dump(algorithms.build("all_reduce", name, n), "Simple", notes)
        steps = max(block.count("<step") for block in text.split("<tb")[1:])
        blocks = max(gpu.count("<tb") for gpu in text.split("<gpu")[1:])
        warned[name, n] = len(notes.warnings)
        assert len(notes.warnings) == (steps > 64) + (blocks > 64)
    assert len(set(warned.values())) > 1


def test_one_of_several_programs_in_a_file(tmp_path: Path):
    """Two programs in a file are named, and one of them is read where it is asked for; mistakes keep their lines."""
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.ALL_PAIRS)
    ring, pairs = (re.search(r'name="(.*?)"', text)[1] for text in (foreign.RING, foreign.ALL_PAIRS))  # type: ignore[index]
    done = simcoll("import", tmp_path / "both.xml")
    assert done.status == 2
    cure = f"choose one by its number, --set program=2, or by its name: --set name={ring}"
    assert f"2 programs, 1: {ring}, 2: {pairs}; {cure}" in done.err
    done = simcoll("import", tmp_path / "both.xml", "--set", f"name={pairs}")
    assert schedule_json.parse(done.out, "x") == read(foreign.ALL_PAIRS)
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.ALL_PAIRS.replace('type="', 'type="q', 1))
    line = foreign.RING.count("\n") + foreign.ALL_PAIRS[: foreign.ALL_PAIRS.index('type="')].count("\n") + 1
    assert f":{line}:" in simcoll("import", tmp_path / "both.xml", "--set", f"name={pairs}").err
    (tmp_path / "both.xml").write_text(foreign.RING + foreign.RING)
    assert f"2 programs, 1: {ring}, 2: {ring}; choose one" in simcoll("import", tmp_path / "both.xml").err


def test_programs_of_one_name_are_told_apart_by_their_numbers(tmp_path: Path):
    """Each of them can be read, and a number that none has, or another name, is refused."""
    name = re.search(r'name="(.*?)"', foreign.RING)[1]  # type: ignore[index]
    pairs = re.sub(r'name=".*?"', f'name="{name}"', foreign.ALL_PAIRS, count=1)
    (tmp_path / "both.xml").write_text(foreign.RING + pairs)
    for number, text in (("1", foreign.RING), ("2", pairs)):
        done = simcoll("import", tmp_path / "both.xml", "--set", f"program={number}", "--set", f"name={name}")
        assert schedule_json.parse(done.out, "x") == read(text)
    for words in (["name", name], ["program", "3"], ["program", "0"], ["program", "x"]):
        done = simcoll("import", tmp_path / "both.xml", "--set", "=".join(words))
        assert (done.status, f"1: {name}, 2: {name}; choose one by its number, --set program=2" in done.err) == (
            2,
            True,
        )


def test_groups_of_thread_blocks_move_each_chunk_once():
    """What thread blocks do together, each with its share, is what one of them would do alone."""
    alone = foreign.plan()
    together = json.loads(json.dumps(alone))
    for gpu in together["gpus"]:
        (block,) = gpu["threadblocks"]
        gpu["threadblocks"] = [
            {**block, "id": i, "ops": [{**op, "tbg_info": {"tb_id": i, "tbg_size": 3}} for op in block["ops"]]}
            for i in range(3)
        ]
    assert read(json.dumps(together), mscclpp) == read(json.dumps(alone), mscclpp)
    together = json.loads(json.dumps(together))
    for gpu in together["gpus"]:  # each block has its own list of channels, and of buffers
        last = gpu["threadblocks"][2]
        last["channels"][0]["channel_ids"], last["remote_buffer_refs"][0]["remote_buffer_ids"] = [1, 0], [1, 0]
        for op in last["ops"]:
            op["dst_buff"] = [
                {**to, "buffer_id": 1 - to["buffer_id"]} if "buffer_id" in to else to for to in op["dst_buff"]
            ]
    assert read(json.dumps(together), mscclpp) == read(json.dumps(alone), mscclpp)
    together["gpus"][1]["threadblocks"].pop()
    with pytest.raises(
        InputError, match=r"gpus\.1\.threadblocks\.0\.ops\.0: 3 thread blocks share this operation, but only 2 reach"
    ):
        read(json.dumps(together), mscclpp)


def test_semaphores_begin_as_the_plan_says():
    """What a semaphore lets through at first is in the file; where nothing does, its thread block waits for ever."""
    plan = json.loads(json.dumps(foreign.gather_plan()))
    for gpu in plan["gpus"]:
        gpu["semaphores"] = [{"init_value": 1}]
        gpu["threadblocks"][0]["ops"].insert(0, {"name": "sem_acquire", "semaphore_ids": [0]})
    assert read(json.dumps(plan), mscclpp) == read(json.dumps(foreign.gather_plan()), mscclpp)
    plan["gpus"][0]["semaphores"] = [{"init_value": 0}]
    with pytest.raises(InputError, match=r"gpus\.0\.threadblocks\.0\.ops\.0: sem_acquire waits here for ever"):
        read(json.dumps(plan), mscclpp)


def test_plans_of_another_form_are_refused_with_their_place():
    """A plan as older versions wrote them, a channel that nobody lists, a key that is missing."""
    plan = json.loads(json.dumps(foreign.switched_plan()))
    plan["gpus"][1]["channels"] = plan["gpus"][1]["channels"][:1]
    with pytest.raises(
        InputError, match=r"gpus\.1\.threadblocks\.0: it names a channel or a buffer that the plan does not list"
    ):
        read(json.dumps(plan), mscclpp)
    plan = json.loads(json.dumps(foreign.switched_plan()))
    del plan["gpus"][0]["threadblocks"][0]["ops"][2]["src_buff"][0]["switch_channel_id"]
    with pytest.raises(InputError, match=r"gpus\.0\.threadblocks\.0\.ops\.2: 'switch_channel_id' is missing"):
        read(json.dumps(plan), mscclpp)
    with pytest.raises(InputError, match="older form; make it anew"):
        read(json.dumps(plan).replace("input_chunks", "inputChunks"), mscclpp)


@pytest.mark.parametrize("together", [True, False])
def test_loads_and_stores_by_a_switch_take_what_they_must(together: bool, tmp_path: Path):
    """NVLink SHARP: a rank sends all its S bytes to be summed and its own sum, S/n, to be stored, and receives as much;
    without overheads a large buffer takes (n + 1)/n of what a switch that keeps the sums would take."""
    n = 4
    found = read(json.dumps(foreign.switched_plan(n, together)), mscclpp)
    assert (found.agents, found.messages) == (1, n * (2 * n + 2))
    for column in (found.src, found.dst):
        assert [int((column == rank).sum()) for rank in range(n)] == [n + 1] * n
    path, _ = brought(tmp_path, json.dumps(foreign.switched_plan(n, together)))
    asked = {"size": "4 GiB", "ranks": n, "profile": "ideal"}
    plan, kept = api.run("all_reduce", on="hgx-h100", algorithm=[str(path), "nvls"], **asked)["time_us"]
    assert plan / kept == pytest.approx((n + 1) / n, rel=0.01)
    with pytest.raises(RefusedError, match="reduce and reach every rank, and the machine has none; take"):
        api.predict("all_reduce", on="mi300x", algorithm=str(path), **asked)


def test_a_pipelined_loop_is_its_body():
    """Chunks that are moved in pieces are moved."""
    plan = json.loads(json.dumps(foreign.gather_plan()))
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            context = {"unit_size": 2**20, "num_chunks": 3}
            block["ops"] = [{"name": "pipeline", "iter_context": context, "ops": block["ops"]}]
    assert read(json.dumps(plan), mscclpp) == read(json.dumps(foreign.gather_plan()), mscclpp)


def test_out_of_place_and_scratch_are_mapped(tmp_path: Path):
    """Buffers of their own, scratch, local copies and reductions, several channels, counts: proved, and in place where
    that does the same."""
    found = read(foreign.ALL_PAIRS)
    assert found.n_chunks == 2 and found.messages == 6 and found.n_steps == 2
    leader = read(foreign.LEADER)
    assert [str(row) for row in leader][:1] == ["step 0: chunk 0→1: 1→0"]


def test_buffers_of_one_block_are_the_ranks_own():
    """The input of an all_gather and the output of a reduce_scatter, out of place, are block r of rank r."""
    found = read(json.dumps(foreign.gather_plan()), mscclpp)
    assert (found.collective, found.n_steps, found.messages) == ("all_gather", 1, 6)
    found = read(foreign.SCATTERED)
    assert [str(row) for row in found] == ["step 0: chunk 1: 0→1 reduce", "step 0: chunk 0: 1→0 reduce"]


def test_what_is_only_sent_on_is_not_taken_for_stored():
    """A ring whose last sums are sent on and not stored is refused: `rrs` is taken at its word."""
    wrong = foreign.RING.replace('type="rrcs"', 'type="rrs"')
    with pytest.raises(InputError, match="does not do what its collective promises"):
        read(wrong)


def test_a_missing_wait_is_found():
    """A program that is right only while some thread block is quick enough is refused: a wait of a valid one is left
    out, each in turn."""
    text = msccl_writer.dump(algorithms.build("all_to_all", "bruck", 4))
    assert read(text).messages == 8
    waits = list(re.finditer(r'depid="\d+" deps="\d+"', text))
    said = []
    for wait in waits:
        with contextlib.suppress(InputError):
            read(text[: wait.start()] + 'depid="-1" deps="-1"' + text[wait.end() :])
            continue
        said.append(wait)
    assert len(said) * 2 > len(waits)
    wrong = text[: said[0].start()] + 'depid="-1" deps="-1"' + text[said[0].end() :]
    with pytest.raises(InputError, match="which thread block is quicker, so a wait is missing"):
        read(wrong)


def test_goal_of_others_is_read_with_its_collective(tmp_path: Path):
    """Who talks to whom, with whole buffers: proved as the collective that is named; without one it is refused."""
    (tmp_path / "g").write_text(foreign.GOAL)
    assert "name its collective with --collective" in simcoll("import", tmp_path / "g", "-o", tmp_path / "o.json").err
    done = simcoll("import", tmp_path / "g", "--collective", "allreduce", "-o", tmp_path / "o.json")
    assert done.status == 0 and "proved: 4 steps, 6 messages" in done.out
    assert "1 computations are left out" in done.out
    assert simcoll("verify", "--schedule", tmp_path / "o.json").status == 0


def test_a_scenario_says_what_does_not_fit(tmp_path: Path):
    """A schedule of another number of ranks, another collective, or none at all."""
    path, _ = brought(tmp_path, foreign.RING)
    base = ["run", "quickstart", "--set", f"algorithm={path}", "--set", "size=1 MiB"]
    told = simcoll(*base, "--set", "ranks=5", "--json").json["points"]
    assert {row["status"] for row in told} == {f"refused: {path} is a schedule of 4 ranks, not 5; write `ranks: 4`"}
    assert "is a schedule of all_reduce, not broadcast" in simcoll(*base, "--set", "collective=broadcast").err
    lost = simcoll("run", "quickstart", "--set", "algorithm=lost.json")
    assert lost.status == 2 and "lost.json: cannot be read" in lost.err


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_levels_do_not_depend_on_hints(n: int, random: object):
    """Without the places that we write into it, an exported ring is still proved, and takes as many steps."""
    schedule = algorithms.build("all_reduce", "ring", n)
    text = re.sub(r' at="[\d.]+"', "", msccl_writer.dump(schedule))
    found = read(text)
    assert found.n_steps == schedule.n_steps and found.messages == schedule.messages


@pytest.mark.parametrize(
    "pair",
    [
        "all_to_all/direct",
        "all_gather/ring",
        "all_reduce/all_pairs",
        "broadcast/binomial",
        "all_reduce/halving_doubling",
    ],
)
def test_programs_of_others_take_as_long_as_ours(pair: str, tmp_path: Path):
    """Without the places that we write into it, an exported schedule is another program's: on equal links it takes as
    long as what it was made from, to the picosecond."""
    schedule = algorithms.build(*pair.split("/"), 8)
    (tmp_path / "p.xml").write_text(re.sub(r' at="[\d.]+"', "", msccl_writer.dump(schedule)))
    assert simcoll("import", tmp_path / "p.xml", "-o", tmp_path / "p.json").status == 0
    which, _, name = pair.partition("/")
    sets = ["profile=one-port", "size=[1 KiB, 64 MiB]", "model.sharing=[fair, fifo]", f"collective={which}"]
    words = [word for item in (*sets, f"algorithm=[{name}, {tmp_path / 'p.json'}]") for word in ("--set", item)]
    rows = simcoll("run", "quickstart", *words, "--json").json["points"]
    times = {key: [row["time_us"] for row in rows if (row["algorithm"] == name) == key] for key in (True, False)}
    assert len(times[True]) == 4 and times[True] == times[False]
    assert simcoll("show", tmp_path / "p.json", "--diagram").status == 0
