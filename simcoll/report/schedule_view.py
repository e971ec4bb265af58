"""Show an algorithm: its counts, the data of every rank before and after, and a diagram of its transfers over time."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from simcoll.config import text_table
from simcoll.engine.binding import bind
from simcoll.engine.run import Policy, run
from simcoll.engine.timing_model import Params
from simcoll.errors import InputError, RefusedError, ScheduleError
from simcoll.formats.schedules.schedule_json import counts, traffic
from simcoll.report.verdicts import of_proofs
from simcoll.schedule import algorithms, registry
from simcoll.schedule.collectives import ALL, COLLECTIVES, NOTHING, collective, promised
from simcoll.schedule.proof import level_for, prove
from simcoll.schedule.registry import Groups
from simcoll.schedule.schedule import Schedule, chunks_text
from simcoll.schedule.side_by_side import joined
from simcoll.schedule.values import State, named_slots, slot_text, terms_text
from simcoll.topology.topology_builder import build as build_topology
from simcoll.topology.topology_keys import TopologySpec

_STAR: Final = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
_STAR_SIZE: Final = 64 * 2**20


def build(
    name: str, n: int, root: int = 0, groups: int | Groups | None = None, subgroups: Groups | None = None
) -> Schedule:
    """Return the schedule of `COLLECTIVE/ALGORITHM` on n ranks.

    `groups` are the groups of a hierarchical algorithm: ranks, or a number of equal groups (default: as the registry
    does). Each of `subgroups` performs the collective by itself, at the same time. An algorithm that needs a switch
    that reduces gets one. Raises InputError for groups that do not fit.
    """
    entry, options = find(name)
    if groups is not None and not entry.uses_groups:
        cure = "take e.g. all_reduce/hierarchical_leader, or --subgroups, each of which works by itself"
        raise InputError(f"--groups: {name} does not work in groups", cure)
    if isinstance(groups, int) and n % groups:
        raise InputError(f"--groups: {n} ranks are not {groups} equal groups", "give a divisor of the ranks")
    parts = tuple(zip(*[iter(range(n))] * (n // groups), strict=True)) if isinstance(groups, int) else groups or ()
    agents = int(entry.needs_agent)
    if subgroups is None:
        return algorithms.build(entry.collective, entry.spelt(options), n, root=root, groups=parts, agents=agents)
    members = [registry.flat(group) for group in subgroups]
    every = [rank for group in members for rank in group]
    if len(set(every)) != len(every) or not set(every) <= set(range(n)) or len(set(map(len, members))) != 1:
        raise InputError(f"--subgroups: not groups of equal size of the ranks 0 … {n - 1}, each rank once", "mend them")
    if root >= len(members[0]):
        raise InputError(
            f"--root: there is no rank {root} in a group of {len(members[0])}", "give its place in a group"
        )
    alone = build(name, len(members[0]), root, groups)
    return joined([alone.on(group, n) for group in members])


def find(name: str) -> tuple[registry.Algorithm, dict[str, str]]:
    """Return the registry's entry, and the options, of an algorithm named `COLLECTIVE/ALGORITHM`; raises InputError."""
    which, slash, algorithm = name.partition("/")
    if not slash:
        first = {known: f"{which}/{known}" for which in reversed(COLLECTIVES) for known in registry.names(which)}
        near = difflib.get_close_matches(name, first, n=1) or ["ring"]
        raise InputError(f"{name!r} is not COLLECTIVE/ALGORITHM", f"write e.g. {first[near[0]]}")
    return registry.find(which, algorithm)


MOST_TRANSFERS: Final = 3_000_000  # of a schedule shown: nobody reads more
MOST_RANKS: Final = 8192  # a step that pairs all of more ranks does not fit in memory


def check_length(name: str, n: int, root: int = 0) -> None:
    """Raise InputError if the schedule of `COLLECTIVE/ALGORITHM` on n ranks is too long to be shown."""
    entry, options = find(name)
    request = registry.Request(n, root, agents=int(entry.needs_agent), options=options)
    lengths = itertools.accumulate(part.transfers for part in entry.steps(request))
    if n > MOST_RANKS or any(length > MOST_TRANSFERS for length in lengths):
        raise InputError(f"--ranks: {name} of {n} ranks has too many transfers to show", "take fewer ranks")


def star_time_ps(schedule: Schedule) -> int:
    """Return a time that compares algorithms: in ps, for 64 MiB on a star of links with 50 GB/s and 0.5 us."""
    spec = TopologySpec.model_validate({"fabric": "single-switch", "hosts": max(2, schedule.n), "link": _STAR})
    topology = build_topology(spec)
    devices = [*topology.ranks[: schedule.n], *["switch"] * schedule.agents]
    program = bind(schedule, topology, devices, Params(), _STAR_SIZE // schedule.n * schedule.n)
    return run(program, Policy(keep="totals")).totals.makespan_ps


def count_rows(name: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return, for each number of ranks, a row of counts, the closed form of the time on a full mesh, and the speed-up
    over the naive algorithm on a star."""
    which, (entry, options) = name.partition("/")[0], find(name)
    rows = []
    for n in ranks:
        schedule = build(name, n)
        time_ps, naive = star_time_ps(schedule), build(f"{which}/{_plainest(which)}", n)
        moved, form = traffic(schedule), entry.closed_form(n) if not options else None
        rows.append(
            {
                "ranks": n,
                "steps": schedule.n_steps,
                "messages": schedule.messages,
                "of a rank": moved.messages,
                "sent": str(moved.sent_mean),
                "most sent": str(moved.sent_most),
                "received": str(moved.received_mean),
                "most received": str(moved.received_most),
                "closed form": f"{_times(form[0])}α + {_times(form[1])}βm" if form else "-",
                "time(us)": f"{time_ps / 1e6:.1f}",
                "speed-up": f"{star_time_ps(naive) / time_ps:.2f}" if time_ps else "",
            }
        )
    return rows


def _times(factor: int | Fraction) -> str:
    return "" if factor == 1 else str(factor)


def _plainest(which: str) -> str:
    """Return the algorithm to which speed-ups refer: `naive` if the collective has it, else `direct`."""
    return "naive" if "naive" in registry.names(which) else "direct"


def counts_line(schedule: Schedule) -> str:
    """Return a sentence with numbers of steps and messages, and the share of data that the busiest rank sends."""
    count, fraction = counts(schedule), traffic(schedule).sent_most
    steps = f"{count['steps']} step{'s' * (count['steps'] != 1)}, {count['messages']} messages"
    what = f"{schedule.collective}/{schedule.algorithm} on {schedule.n} ranks"
    return f"{what}: {steps}, and the busiest rank sends {fraction} of the data."


def count_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence with steps and speed-up, then a table of counts and times for each number of ranks."""
    first, last = rows[0], rows[-1]
    steps = f"{first['steps']} step{'s' * (first['steps'] != 1)}"
    if first["steps"] != last["steps"]:
        steps += f" on {first['ranks']} ranks to {last['steps']} on {last['ranks']}"
    gains = " to ".join(dict.fromkeys(str(row["speed-up"]) for row in (first, last)))
    head = text_table.wrapped(f"{name}: {steps}; {gains} times as fast as the plainest algorithm.", "  ")
    entry, options = find(name)
    forms = [f"messages: {entry.messages}"] * bool(entry.messages) + [f"time on a full mesh: {entry.cost}"] * bool(
        entry.cost
    )
    remarks = [
        *([f"# closed forms: {'; '.join(forms)}"] if forms and not options else []),
        "# of a rank: messages that the busiest rank sends; sent, received: by a rank on average, most: by the busiest "
        "rank, in buffers of m bytes",
        "# time: 64 MiB on a star of 50 GB/s, 0.5 us links; speed-up: over the plainest algorithm there, by time; it "
        "is not the ratio of messages, because messages of different ranks travel at the same time; on a star all "
        "messages of a rank share its link",
    ]
    return "\n".join([head, text_table.render(list(rows[0]), rows), *map(text_table.wrapped, remarks)])


# --- before and after ---


def data(schedule: Schedule) -> str:
    """Return what each rank holds before and after, block by block: `a1` is block 1 of the buffer of rank 0 (a)."""
    contract = collective(schedule.collective)
    before = contract.table(contract.before, schedule.n, schedule.n_chunks, schedule.root)
    after = contract.table(contract.after, schedule.n, schedule.n_chunks, schedule.root)
    lines = [f"{contract.name}: {contract.summary}", "", "rank  before" + " " * 30 + "after"]
    for rank in range(schedule.n):
        held = [" ".join(_value(*cell) for cell in table[rank].tolist()) for table in (before, after)]
        lines.append(f"{rank:4}  {held[0]:<34}  {held[1]}")
    lines += [
        "",
        f"{_letter(0)}1 is chunk 1 of rank 0's buffer, Σ1 the reduction of chunk 1 over all ranks, · nothing promised",
    ]
    return "\n".join(lines)


def _value(owner: int, block: int) -> str:
    if owner == NOTHING:
        return "·"
    return f"{'Σ' if owner == ALL else _letter(owner)}{block}"


def _letter(rank: int) -> str:
    return chr(ord("a") + rank) if rank < 26 else f"r{rank}."


# --- with numbers ---


def values(schedule: Schedule, states: Sequence[State], op: str, step: int | None = None) -> str:
    """Return what each participant holds in the states of `worked`; or before and after one `step`. Columns are chunks,
    then slots of scratch. What a step stores stands behind `▸`, what it reduces is written out as a formula."""
    contract = collective(schedule.collective)
    slots = named_slots(schedule)
    first, last = (0, schedule.n_steps) if step is None else (step, step + 1)
    rows = _value_rows(schedule, slots, "before", State(states[first].held, {}), op)
    for number in range(first, last):
        rows += _value_rows(schedule, slots, f"step {number}", states[number + 1], op)
    for rank in range(schedule.n) if last == schedule.n_steps else ():
        held = {slots[slot]: slot_text(op, states[-1], rank, slot) or " " for slot in promised(schedule, rank)}
        rows.append({"": " " if rank else "end", "rank": f"{rank}", **held})
    doing = f"{contract.name}, {op}" if contract.reduces else contract.name
    legend = ["▸ stored by this step"] + [f"{terms_text(op, [1, 4])} reduced by this step"] * contract.reduces
    if op == "avg":
        legend.append("the sum is divided at the end")
    foot = text_table.wrapped(f"# {'; '.join(legend)}; from: the ranks that sent it; · undefined")
    columns = ["", "rank", "from", *slots.values()]
    table = text_table.render(columns, [{**dict.fromkeys(columns, " "), **row} for row in rows])
    return f"{doing}: {contract.summary}\n{table}\n{foot}"


def _value_rows(schedule: Schedule, slots: Mapping[int, str], when: str, state: State, op: str) -> list[dict[str, str]]:
    rows = []
    for participant in range(schedule.participants):
        came = [arrival for (to, _), arrival in state.came.items() if to == participant]
        senders = dict.fromkeys(sender for arrival in came for sender in arrival.senders)
        name = f"{participant}" if participant < schedule.n else "switch"
        held = {text: slot_text(op, state, participant, slot) or " " for slot, text in slots.items()}
        source = ",".join(f"{each}" if each < schedule.n else "switch" for each in senders) or " "
        rows.append({"": " " if participant else when, "rank": name, "from": source, **held})
    return rows


# --- space-time picture ---


def diagram(schedule: Schedule) -> str:
    """Return a line for each transfer, with ranks as columns: `●` sends, `>` `<` carry, `+` reduces, `▸` overwrites."""
    n, lines = schedule.participants, []
    names = [str(p) if p < schedule.n else "sw" for p in range(n)]
    lines.append("step  " + "".join(f"{name:^6}" for name in names))
    last = -1
    rows = list(schedule)
    for first, end in itertools.pairwise([*schedule.heads.tolist(), len(rows)]):
        row = rows[first]
        left, right = sorted((row.src, row.dst))
        cells = ["  │   "] * n
        for p in range(left, right):
            cells[p] = "──────" if p > left else "  ├───"
        cells[right] = "──┤   " if right > left else "  ↺   "
        tip = "+" if row.reduce else ("▸" if row.dst > row.src else "◂")
        cells[row.dst] = cells[row.dst][:2] + tip + cells[row.dst][3:]
        cells[row.src] = cells[row.src][:2] + ("●" if row.src != row.dst else "↺") + cells[row.src][3:]
        lines.append(
            f"{row.step if row.step != last else '':>4}  {''.join(cells)}{chunks_text(rows[first:end])}".rstrip()
        )
        last = row.step
    return "\n".join(lines)


# --- verification ---


def every_pair() -> list[str]:
    """Return the names of all registered algorithms, as `COLLECTIVE/ALGORITHM`."""
    return [f"{which}/{name}" for which in registry.ALGORITHMS for name in registry.names(which)]


def verdict(name: str, n: int) -> dict[str, Any]:
    """Prove an algorithm on n ranks; return a row with status (proved, refused, wrong), reason and proof."""
    try:
        return verdict_on(build(name, n))
    except RefusedError as error:
        which, _, algorithm = name.partition("/")
        case = {"collective": which, "algorithm": algorithm, "ranks": n, "proof": None}
        return {**case, "status": "refused", "reason": str(error)}


def verdict_on(schedule: Schedule) -> dict[str, Any]:
    """Prove a given schedule; return a row like that of `verdict`."""
    proof = level_for(schedule.n)
    case = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.n, "proof": proof}
    try:
        prove(schedule, proof)
    except ScheduleError as error:
        return {**case, "status": "wrong", "reason": str(error)}
    return {**case, "status": "proved", "reason": ""}


def proof_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that counts the proofs, then a line for each of them."""
    lines = [f"{row['collective']}/{row['algorithm']}, {row['ranks']} ranks: {_verdict(row)}" for row in rows]
    return "\n".join([of_proofs(rows), *lines])


def _verdict(row: Mapping[str, Any]) -> str:
    return f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])
