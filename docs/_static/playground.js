"use strict";
// Schedules of simcoll, timed and drawn in the page. `SIMCOLL` (playground-data.js) has them; nothing else is loaded.
// The model is that of the profile `one-port` on a full mesh: a rank sends one message at a time, a message of b bytes
// leaves after b / bandwidth and is there a latency, of 1 ps at least, later. Times are whole picoseconds, as in
// simcoll's engines: a test compares both in a browser.

const PS = 1e12, ELEMENT = 4;  // bytes: float32, as in a scenario that does not say another type

/** Bytes of each chunk: whole elements of the blocks that a buffer has, and of the equal parts that a block has. */
function cut(schedule, nbytes) {
  const split = (count, parts) => Array.from({length: parts}, (_, part) => Math.floor(count / parts) + (part < count % parts));
  return split(nbytes / ELEMENT, schedule.blocks).flatMap(block => split(block, schedule.chunks / schedule.blocks)).map(count => count * ELEMENT);
}

/** Whole picoseconds that a link is busy with so many bytes; a double would round what is long. */
function served(count, bandwidth) {
  const rate = BigInt(Math.round(bandwidth));
  return Math.max(1, Number((BigInt(count) * BigInt(PS) + rate - 1n) / rate));
}

/** Times of all transfers of a schedule: [sender, receiver, reduces, moves, begin, sent, end, step], the last end, and when
 *  all transfers up to each step have ended. A move is of a slot into a slot. */
function replay(schedule, nbytes, latency, bandwidth) {
  const sizes = cut(schedule, nbytes);
  const free = new Map(), complete = new Map(), bars = [], ends = [];
  let last = 0;
  for (const [number, step] of schedule.steps.entries()) {
    const written = new Map();  // what a step writes is read from the next step on
    for (const [src, dst, reduces, moves] of step) {
      const begin = Math.max(free.get(src) ?? 0, ...moves.map(([from]) => complete.get(`${src}/${from}`) ?? 0));
      const sent = begin + (src === dst ? 1 : served(moves.reduce((sum, [, , chunk]) => sum + (sizes[chunk] ?? 0), 0), bandwidth));
      const end = src === dst ? sent : sent + latency;
      const slots = moves.map(([, to]) => `${dst}/${to}`);
      const before = slots.map(slot => written.get(slot) ?? (reduces ? complete.get(slot) ?? 0 : 0));
      for (const slot of slots) written.set(slot, Math.max(end, ...before));
      free.set(src, sent);
      bars.push([src, dst, reduces, moves, begin, sent, end, number]);
      last = Math.max(last, end);
    }
    for (const [slot, time] of written) complete.set(slot, time);
    ends.push(last);
  }
  return {bars, time: last, ends};
}

const OPERATORS = {sum: (a, b) => a + b, avg: (a, b) => a + b, product: (a, b) => a * b, min: Math.min, max: Math.max};
const SIGNS = {sum: "+", avg: "+", product: "×"};

/** The numbers that a schedule's ranks hold before the first step and after each step, from those that they hand in, one a
 *  chunk: {held, came}, where `came` has what the step writes: its terms, and who sent them. The rules are those of
 *  simcoll's schedule/values.py, and so are the texts below: a test compares both in a browser. */
function worked(schedule, ranks, numbers, op) {
  const held = Array.from({length: ranks}, () => []), defined = new Set();
  for (let rank = 0; rank < ranks; rank++)
    (schedule.owned?.[rank] ?? [...Array(schedule.chunks).keys()]).forEach((slot, place) => {
      held[rank][slot] = numbers[rank][place];
      defined.add(`${rank}/${slot}`);
    });
  const state = came => ({held: held.map(row => [...row]), came});
  const states = [state(new Map())];
  for (const step of schedule.steps) {
    const came = new Map();
    const sent = step.flatMap(([src, dst, reduces, moves]) => moves.map(([from, to]) => [src, dst, reduces, to, held[src][from]]));
    for (const [src, dst, reduces, to, term] of sent) {
      const key = `${dst}/${to}`, adds = reduces && defined.has(key);
      if (!adds || !came.has(key)) came.set(key, {terms: adds ? [held[dst][to]] : [], senders: []});
      came.get(key).terms.push(term);
      came.get(key).senders.push(src);
      held[dst][to] = adds ? OPERATORS[op](held[dst][to], term) : term;
      defined.add(key);
    }
    states.push(state(came));
  }
  return states;
}

/** A number with at most 6 digits if it is no whole one; a dot if it is undefined. */
function numberText(number) {
  if (number === undefined) return "·";
  return Number.isInteger(number) && Math.abs(number) < 1e16 ? `${number}` : `${Number(number.toPrecision(6))}`;
}

/** What a slot holds; of a step that writes it, as a formula, or marked as stored. */
function slotText(op, {held, came}, rank, slot) {
  const arrival = came.get(`${rank}/${slot}`);
  if (!arrival) return numberText(held[rank][slot]);
  const texts = arrival.terms.map(numberText);
  if (texts.length === 1) return `▸${texts[0]}`;
  return op in SIGNS ? texts.join(SIGNS[op]).replaceAll("+-", "-") : `${op}(${texts})`;
}

/** The rows of a position of a schedule, as `simcoll show --values` prints them: rank, who sent, and each slot's text. At 0
 *  they are before all, at n after step n - 1, beyond the last step the end. */
function rowsAt(schedule, ranks, numbers, op, position) {
  const states = worked(schedule, ranks, numbers, op), last = position > schedule.steps.length, state = states[Math.min(position, states.length - 1)];
  const width = Math.max(schedule.chunks, ...states.at(-1).held.map(row => row.length));
  return state.held.map((row, rank) => {
    const senders = new Set([...state.came].filter(([key]) => key.startsWith(`${rank}/`)).flatMap(([, {senders}]) => senders));
    const cells = Array.from({length: width}, (_, slot) => {
      if (!last) return slot < schedule.chunks || row[slot] !== undefined ? slotText(op, state, rank, slot) : "";
      const promised = slot < schedule.chunks && (schedule.promised?.[rank].includes(slot) ?? true);
      return promised ? numberText(op === "avg" ? row[slot] / ranks : row[slot]) : "";
    });
    return [rank, last ? "" : [...senders].join(","), ...cells];
  });
}

/** Time in ps by the closed form [a, p, q], a·alpha + p/q·beta·m; null where there is none. */
function closed(form, nbytes, latency, bandwidth) {
  return form ? form[0] * latency + (form[1] * nbytes * PS) / (form[2] * bandwidth) : null;
}

/** A time in ps as one says it. */
function said(ps) {
  const [unit, size] = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]].find(([, size]) => ps >= size) ?? ["ps", 1];
  return `${Number((ps / size).toPrecision(3))} ${unit}`;
}

/** The setting for a collective: one that moves no data has no size. */
const settingOf = (collective, setting) => (SIMCOLL[collective].sized ? setting : {...setting, nbytes: 0});

/** Bytes as one says them. */
function bytes(count) {
  const power = Math.min(3, Math.floor(Math.log2(count) / 10));
  return `${Number((count / 2 ** (10 * power)).toPrecision(4))} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

/** An element with attributes and children; of SVG where its name has a colon. */
function made(name, attributes = {}, ...children) {
  const svg = name.startsWith("svg:");
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A text whose words in single backticks are code. */
const worded = (text) => text.split("`").map((part, index) => (index % 2 ? made("code", {class: "docutils literal"}, part) : part));

const colour = (index, count) => `hsl(${Math.round((360 * index) / count)} 55% 50%)`;

/** The space-time picture of a schedule: bars are sends, coloured by chunk, thin lines lead to where they arrive. */
function timeline(schedule, ranks, setting, {width = 640, lane = 22, position = 0, until = 0} = {}) {
  const {bars, time, ends} = replay(schedule, setting.nbytes, setting.latency, setting.bandwidth), total = Math.max(until, time);
  const left = 34, height = ranks * lane + 30, x = at => left + ((width - left - 8) * at) / total;
  const picture = made("svg:svg", {viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline",
    "aria-label": `${bars.length} transfers between ${ranks} ranks in ${said(time)}`});
  for (let rank = 0; rank < ranks; rank++) {
    const y = rank * lane + lane / 2;
    picture.append(made("svg:line", {x1: left, x2: width - 8, y1: y, y2: y, class: "lane"}),
      made("svg:text", {x: left - 6, y: y + 4, class: "name"}, `${rank}`));
  }
  for (const [src, dst, reduces, moves, begin, sent, end, number] of bars) {
    const other = position && position <= ends.length && number !== position - 1 ? {opacity: 0.25} : {};
    const [y, to] = [src, dst].map(rank => rank * lane + lane / 2), [[slot]] = moves;
    const what = moves.map(([from]) => from < schedule.chunks ? `chunk ${from}` : `scratch ${from - schedule.chunks}`).join(", ");
    const label = made("svg:title", {}, `${what}: ${src} to ${dst}${reduces ? ", added there" : ""}, ${said(begin)} to ${said(end)}`);
    if (src !== dst)
      picture.append(made("svg:line", {x1: x(sent), y1: y, x2: x(end), y2: to, class: "flight",
        stroke: colour(slot % schedule.chunks, schedule.chunks), "stroke-dasharray": reduces ? "none" : "3 2", ...other}));
    picture.append(made("svg:rect", {...other, x: x(begin), y: y - lane * 0.3, width: Math.max(1, x(sent) - x(begin) - 0.6),
      height: lane * 0.6, fill: colour(slot % schedule.chunks, schedule.chunks)}, label));
    if (x(sent) - x(begin) > 26)
      picture.append(made("svg:text", {x: (x(begin) + x(sent)) / 2, y: y + 3.5, class: "label"}, `to ${dst}`));
  }
  if (position) {
    const now = x(ends[Math.min(position, ends.length) - 1]);
    picture.append(made("svg:line", {x1: now, x2: now, y1: 0, y2: ranks * lane, class: "now"}));
  }
  for (const part of [0, 0.5, 1])
    picture.append(made("svg:text", {x: x(part * total), y: height - 6, class: part ? "tick end" : "tick"}, part ? said(part * total) : "0"));
  return picture;
}

/** The links of a full mesh, those that a step uses as arrows: solid if the receiver adds, dashed if it stores. */
function network(schedule, ranks, position, width = 300) {
  const step = schedule.steps[position - 1] ?? [], centre = width / 2, radius = centre - 24;
  const angle = rank => 2 * Math.PI * (0.75 + rank / ranks);
  const place = rank => [centre + radius * Math.cos(angle(rank)), centre + radius * Math.sin(angle(rank))];
  const used = step.filter(([src, dst]) => src !== dst);
  const picture = made("svg:svg", {viewBox: `0 0 ${width} ${width}`, role: "img", class: "network",
    "aria-label": used.length ? `busy links: ${used.map(([src, dst]) => `${src} to ${dst}`).join(", ")}` : "no link is busy"});
  for (let one = 0; one < ranks; one++)
    for (let other = one + 1; other < ranks; other++) {
      const [[x1, y1], [x2, y2]] = [place(one), place(other)];
      picture.append(made("svg:line", {x1, y1, x2, y2, class: "lane"}));
    }
  for (const [src, dst, reduces, [[slot]]] of used) {
    const [[x1, y1], [x2, y2]] = [place(src), place(dst)], length = Math.hypot(x2 - x1, y2 - y1);
    const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length], stroke = colour(slot % schedule.chunks, schedule.chunks);
    const [tx, ty] = [x2 - 15 * ux - 3 * uy, y2 - 15 * uy + 3 * ux];  // beside the arrow that comes back
    picture.append(made("svg:line", {x1: x1 + 14 * ux - 3 * uy, y1: y1 + 14 * uy + 3 * ux, x2: tx, y2: ty, class: "busy", stroke, "stroke-dasharray": reduces ? "none" : "5 3"}),
      made("svg:path", {d: `M${tx + 5 * ux},${ty + 5 * uy} L${tx - 5 * ux - 4 * uy},${ty - 5 * uy + 4 * ux} L${tx - 5 * ux + 4 * uy},${ty - 5 * uy - 4 * ux} Z`, fill: stroke}));
  }
  for (let rank = 0; rank < ranks; rank++) {
    const [x, y] = place(rank);
    picture.append(made("svg:circle", {cx: x, cy: y, r: 11, class: "rank"}), made("svg:text", {x, y: y + 4, class: "tick"}, `${rank}`));
  }
  return picture;
}

/** One number from 1 to 9 for each chunk that a rank hands in. */
function counted(schedule, ranks) {
  let next = 0;
  return Array.from({length: ranks}, (_, rank) => (schedule.owned?.[rank] ?? [...Array(schedule.chunks)]).map(() => (next++ % 9) + 1));
}

/** A step of an algorithm: its links, its place in time, and what all ranks hold. */
function stepped(name, schedule, ranks, setting, op, position, until) {
  const at = Math.min(position, schedule.steps.length + 1), {ends} = replay(schedule, setting.nbytes, setting.latency, setting.bandwidth);
  const when = at === 0 ? "before" : at > schedule.steps.length ? `end, ${said(ends.at(-1) ?? 0)}` : `step ${at - 1}, done after ${said(ends[at - 1])}`;
  const rows = rowsAt(schedule, ranks, counted(schedule, ranks), op, at);
  const head = ["rank", "from", ...rows[0].slice(2).map((_, slot) => (slot < schedule.chunks ? `chunk ${slot}` : `scratch ${slot}`))];
  const cell = text => made("td", /[▸(+×]|\d-/.test(text) ? {class: "came"} : {}, `${text}`);
  return made("section", {class: "step", "data-name": name, "data-position": at},
    made("h4", {}, `${name}: ${when}`), network(schedule, ranks, at), timeline(schedule, ranks, setting, {lane: 16, position: at, until}),
    made("div", {class: "wide"}, made("table", {class: "docutils values"}, made("thead", {}, made("tr", {}, ...head.map(text => made("th", {}, text)))),
      made("tbody", {}, ...rows.map(row => made("tr", {}, ...row.map(cell)))))));
}

const SIZES = Array.from({length: 25}, (_, step) => 2 ** (step + 2));  // that can be chosen, and the axis of curves

/** Time over size of all algorithms, both axes logarithmic, the chosen one thick. */
function curves(algorithms, ranks, setting, chosen, width = 640, height = 300) {
  const sizes = SIZES, left = 60, bottom = 40;
  const lines = algorithms.map(([name, entry]) => [name, sizes.map(nbytes =>
    replay(entry.schedules[ranks], nbytes, setting.latency, setting.bandwidth).time)]);
  const times = lines.flatMap(([, line]) => line), low = Math.log10(Math.min(...times)), high = Math.log10(Math.max(...times));
  const x = nbytes => left + ((width - left - 10) * Math.log2(nbytes / sizes[0])) / (sizes.length - 1);
  const y = time => height - bottom - ((height - bottom - 10) * (Math.log10(time) - low)) / (high - low || 1);
  const picture = made("svg:svg", {viewBox: `0 0 ${width} ${height}`, role: "img", class: "curves",
    "aria-label": `time over size of ${lines.length} algorithms on ${ranks} ranks`});
  for (let power = Math.ceil(low); power <= high; power++)
    picture.append(made("svg:line", {x1: left, x2: width - 10, y1: y(10 ** power), y2: y(10 ** power), class: "lane"}),
      made("svg:text", {x: left - 6, y: y(10 ** power) + 4, class: "name"}, said(10 ** power)));
  for (let step = 0; step < sizes.length; step += 6)
    picture.append(made("svg:text", {x: x(sizes[step]), y: height - bottom + 16, class: step + 1 < sizes.length ? "tick" : "tick end"}, bytes(sizes[step])));
  picture.append(made("svg:line", {x1: x(setting.nbytes), x2: x(setting.nbytes), y1: 6, y2: height - bottom, class: "now"}));
  lines.forEach(([name, line], index) => {
    const points = line.map((time, step) => `${x(sizes[step]).toFixed(1)},${y(time).toFixed(1)}`).join(" ");
    picture.append(made("svg:polyline", {points, fill: "none", stroke: colour(index, lines.length),
      "stroke-width": name === chosen ? 4 : 1.6, "stroke-dasharray": index % 2 ? "7 3" : "none"}, made("svg:title", {}, name)));
  });
  picture.append(made("svg:text", {x: (left + width) / 2, y: height - 6, class: "label axis"}, "size: largest buffer of a rank"));
  return picture;
}

/** All algorithms of a collective at a setting, the quickest first: [name, entry, time in ps]. */
function ranked(collective, ranks, setting) {
  return Object.entries(SIMCOLL[collective].algorithms)
    .map(([name, entry]) => [name, entry, replay(entry.schedules[ranks], setting.nbytes, setting.latency, setting.bandwidth).time])
    .sort((one, other) => one[2] - other[2]);
}

/** The playground: choices, a table of all algorithms, their curves, and the timeline of one. */
function playground(place) {
  const state = {collective: "all_reduce", algorithm: "ring", beside: "", ranks: 8, size: 2 ** 18, latency: 1, bandwidth: 50, op: "sum", position: 0};
  let playing = null;
  const shown = made("div", {class: "shown"}), choices = made("form", {class: "choices"});
  const refused = made("p", {class: "refused", role: "alert"});
  const choice = (label, key, element) => {
    element.id = `playground-${key}`;
    element.addEventListener("input", () => {
      const text = element.value.trim(), value = key === "collective" ? text : Number(text);
      const wrong = key !== "collective" && (text === "" || !Number.isFinite(value) || value < Number(element.min || 0));
      element.setAttribute("aria-invalid", wrong);
      refused.textContent = wrong ? `${label} must be a number from ${element.min} on; ${state[key]} is still used.` : "";
      if (!wrong) { state[key] = value; draw(); }
    });
    choices.append(made("span", {}, made("label", {for: element.id}, label), " ", element));
    return element;
  };
  const select = (values, chosen) => {
    const element = made("select", {}, ...values.map(([value, text]) => made("option", {value}, text)));
    element.value = chosen;
    return element;
  };
  const counts = Object.keys(Object.values(SIMCOLL.all_reduce.algorithms)[0].schedules);
  choice("Collective", "collective", select(Object.keys(SIMCOLL).map(name => [name, name]), state.collective));
  choice("ranks", "ranks", select(counts.map(count => [count, count]), state.ranks));
  const size = choice("size", "size", select(SIZES.map(count => [count, bytes(count)]), state.size));
  choice("latency (us)", "latency", made("input", {type: "number", min: 0, step: "any", value: state.latency}));
  choice("bandwidth (GB/s)", "bandwidth", made("input", {type: "number", min: 0.001, step: "any", value: state.bandwidth}));

  const pressed = () => shown.querySelector('button[aria-pressed="true"]');  // a new one each time that all is drawn

  function draw() {
    const {collective, ranks} = state;
    const {sized, promise} = SIMCOLL[collective];
    const setting = settingOf(collective, {nbytes: state.size, latency: Math.max(1, Math.round(state.latency * 1e6)), bandwidth: state.bandwidth * 1e9});
    size.disabled = !sized;
    const order = ranked(collective, ranks, setting), entries = Object.entries(SIMCOLL[collective].algorithms);
    if (!(state.algorithm in SIMCOLL[collective].algorithms)) state.algorithm = order[0][0];
    const head = made("tr", {}, ...["algorithm", "steps", "messages", "closed form", "by it", "replayed"].map(text => made("th", {}, text)));
    const rows = order.map(([name, entry, time]) => {
      const button = made("button", {type: "button", title: entry.help.replaceAll("`", ""), "aria-pressed": name === state.algorithm}, name);
      button.style.borderColor = colour(entries.findIndex(([each]) => each === name), entries.length);
      button.addEventListener("click", () => { state.algorithm = name; draw(); pressed().focus(); });
      const schedule = entry.schedules[ranks], form = entry.forms[ranks];
      const cells = [button, schedule.steps.length, schedule.messages, form ? entry.cost : "", form ? said(closed(form, setting.nbytes, setting.latency, setting.bandwidth)) : "", said(time)];
      const row = made("tr", {}, ...cells.map(cell => made("td", {}, cell instanceof Node ? cell : `${cell}`)));
      row.lastChild.dataset.ps = time;
      return row;
    });
    const least = order.filter(([, , time]) => time <= order[0][2]).map(([name]) => name).join(" = ");
    const chosen = SIMCOLL[collective].algorithms[state.algorithm];
    shown.replaceChildren(
      made("p", {class: "verdict"}, `Quickest ${sized ? `of ${bytes(setting.nbytes)} ` : ""}on ${ranks} ranks: ${least}, ${said(order[0][2])}. ${collective}: ${promise}${sized ? "" : "; it has no size"}.`),
      made("div", {class: "wide"}, made("table", {class: "docutils"}, made("thead", {}, head), made("tbody", {}, ...rows))),
      ...(sized ? [curves(entries, ranks, setting, state.algorithm)] : []),
      made("p", {}, `${state.algorithm}: `, ...worded(chosen.help)), stepper, panels);
    const others = made("option", {value: ""}, "none"), names = entries.map(([name]) => name).filter(name => name !== state.algorithm);
    if (!names.includes(state.beside)) state.beside = "";
    beside.replaceChildren(others, ...names.map(name => made("option", {value: name}, name)));
    beside.value = state.beside;
    const offered = SIMCOLL[collective].operators;
    if (!offered.includes(state.op)) state.op = offered[0] ?? "sum";
    operator.replaceChildren(...offered.map(name => made("option", {value: name}, name)));
    operator.disabled = !offered.length;
    if (offered.length) operator.value = state.op;
    show(setting);
  }

  const stepper = made("div", {class: "stepper"}), panels = made("div", {class: "panels"});
  const place_of = made("input", {type: "range", min: 0, "aria-label": "step"}), beside = made("select", {id: "playground-beside"}), operator = made("select", {id: "playground-op"});
  const longest = () => Math.max(...shownNames().map(name => SIMCOLL[state.collective].algorithms[name].schedules[state.ranks].steps.length)) + 1;
  const shownNames = () => [state.algorithm, ...(state.beside ? [state.beside] : [])];
  const go = position => { state.position = Math.max(0, Math.min(longest(), position)); show(); };
  const button = (label, text, click) => {
    const element = made("button", {type: "button", "aria-label": label, title: label}, text);
    element.addEventListener("click", click);
    return element;
  };
  const stop = () => { clearInterval(playing); playing = null; play.textContent = "▶"; };
  const play = button("play", "▶", () => {
    if (playing !== null) return stop();
    if (state.position >= longest()) go(0);
    play.textContent = "❚❚";
    playing = setInterval(() => { go(state.position + 1); if (state.position >= longest()) stop(); }, 900);
  });
  place_of.addEventListener("input", () => go(Number(place_of.value)));
  beside.addEventListener("input", () => { state.beside = beside.value; show(); });
  operator.addEventListener("input", () => { state.op = operator.value; show(); });
  stepper.append(button("first", "|◀", () => go(0)), button("back", "◀ step", () => go(state.position - 1)), play,
    button("forward", "step ▶", () => go(state.position + 1)), button("last", "▶|", () => go(longest())), place_of,
    made("label", {for: operator.id}, "operator "), operator, made("label", {for: beside.id}, "beside it "), beside);

  let current = null;
  /** Draw the step of the chosen algorithm, and of the one beside it, on one axis of time. */
  function show(setting = current) {
    current = setting;
    state.position = Math.min(state.position, longest());
    place_of.max = longest();
    place_of.value = state.position;
    const schedules = shownNames().map(name => [name, SIMCOLL[state.collective].algorithms[name].schedules[state.ranks]]);
    const until = Math.max(...schedules.map(([, schedule]) => replay(schedule, setting.nbytes, setting.latency, setting.bandwidth).time));
    panels.replaceChildren(...schedules.map(([name, schedule]) => stepped(name, schedule, state.ranks, setting, state.op, state.position, until)));
  }
  draw();
  place.replaceChildren(choices, refused, shown);
}

/** The gallery: each algorithm with its timeline and its cost. */
function gallery(place, ranks = 8, setting = {nbytes: 2 ** 20, latency: 1e6, bandwidth: 50e9}) {
  for (const [collective, {promise, algorithms}] of Object.entries(SIMCOLL)) {
    place.append(made("h3", {}, collective), made("p", {}, `${promise[0].toUpperCase()}${promise.slice(1)}.`));
    const own = settingOf(collective, setting);
    for (const [name, entry, time] of ranked(collective, ranks, own)) {
      const schedule = entry.schedules[ranks], form = entry.forms[ranks];
      const cost = form ? `, ${entry.cost}` : "";
      place.append(made("figure", {},
        made("figcaption", {}, made("strong", {}, name), ` ${said(time)}: ${schedule.steps.length} steps, ${schedule.messages} messages${cost}. `, ...worded(entry.help)),
        timeline(schedule, ranks, own, {lane: 14})));
    }
  }
}

for (const [name, make] of Object.entries({playground, gallery})) {
  const place = document.getElementById(`simcoll-${name}`);
  if (place) make(place);
}
