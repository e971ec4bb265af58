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

/** Times of all transfers of a schedule: [sender, receiver, reduces, moves, begin, sent, end], and the last end. A move is
 *  of a slot into a slot. */
function replay(schedule, nbytes, latency, bandwidth) {
  const sizes = cut(schedule, nbytes);
  const free = new Map(), complete = new Map(), bars = [];
  let last = 0;
  for (const step of schedule.steps) {
    const written = new Map();  // what a step writes is read from the next step on
    for (const [src, dst, reduces, moves] of step) {
      const begin = Math.max(free.get(src) ?? 0, ...moves.map(([from]) => complete.get(`${src}/${from}`) ?? 0));
      const sent = begin + (src === dst ? 1 : served(moves.reduce((sum, [, , chunk]) => sum + (sizes[chunk] ?? 0), 0), bandwidth));
      const end = src === dst ? sent : sent + latency;
      const slots = moves.map(([, to]) => `${dst}/${to}`);
      const before = slots.map(slot => written.get(slot) ?? (reduces ? complete.get(slot) ?? 0 : 0));
      for (const slot of slots) written.set(slot, Math.max(end, ...before));
      free.set(src, sent);
      bars.push([src, dst, reduces, moves, begin, sent, end]);
      last = Math.max(last, end);
    }
    for (const [slot, time] of written) complete.set(slot, time);
  }
  return {bars, time: last};
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
function timeline(schedule, ranks, setting, width = 640, lane = 22) {
  const {bars, time} = replay(schedule, setting.nbytes, setting.latency, setting.bandwidth);
  const left = 34, height = ranks * lane + 30, x = at => left + ((width - left - 8) * at) / time;
  const picture = made("svg:svg", {viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline",
    "aria-label": `${bars.length} transfers between ${ranks} ranks in ${said(time)}`});
  for (let rank = 0; rank < ranks; rank++) {
    const y = rank * lane + lane / 2;
    picture.append(made("svg:line", {x1: left, x2: width - 8, y1: y, y2: y, class: "lane"}),
      made("svg:text", {x: left - 6, y: y + 4, class: "name"}, `${rank}`));
  }
  for (const [src, dst, reduces, moves, begin, sent, end] of bars) {
    const [y, to] = [src, dst].map(rank => rank * lane + lane / 2), [[slot]] = moves;
    const what = moves.map(([from]) => from < schedule.chunks ? `chunk ${from}` : `scratch ${from - schedule.chunks}`).join(", ");
    const label = made("svg:title", {}, `${what}: ${src} to ${dst}${reduces ? ", added there" : ""}, ${said(begin)} to ${said(end)}`);
    if (src !== dst)
      picture.append(made("svg:line", {x1: x(sent), y1: y, x2: x(end), y2: to, class: "flight",
        stroke: colour(slot % schedule.chunks, schedule.chunks), "stroke-dasharray": reduces ? "none" : "3 2"}));
    picture.append(made("svg:rect", {x: x(begin), y: y - lane * 0.3, width: Math.max(1, x(sent) - x(begin) - 0.6),
      height: lane * 0.6, fill: colour(slot % schedule.chunks, schedule.chunks)}, label));
    if (x(sent) - x(begin) > 26)
      picture.append(made("svg:text", {x: (x(begin) + x(sent)) / 2, y: y + 3.5, class: "label"}, `to ${dst}`));
  }
  for (const part of [0, 0.5, 1])
    picture.append(made("svg:text", {x: x(part * time), y: height - 6, class: part ? "tick end" : "tick"}, part ? said(part * time) : "0"));
  return picture;
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
  const state = {collective: "all_reduce", algorithm: "ring", ranks: 8, size: 2 ** 18, latency: 1, bandwidth: 50};
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
      made("p", {}, `${state.algorithm}: `, ...worded(chosen.help)),
      timeline(chosen.schedules[ranks], ranks, setting));
  }
  draw();
  place.replaceChildren(choices, refused, shown);
}

/** The gallery: each algorithm with its timeline and its cost. */
function gallery(place, ranks = 8, setting = {nbytes: 2 ** 20, latency: 1e6, bandwidth: 50e9}) {
  for (const [collective, {promise, algorithms}] of Object.entries(SIMCOLL)) {
    place.append(made("h3", {}, collective), made("p", {}, `${promise}.`));
    const own = settingOf(collective, setting);
    for (const [name, entry, time] of ranked(collective, ranks, own)) {
      const schedule = entry.schedules[ranks], form = entry.forms[ranks];
      const cost = form ? `, ${entry.cost}` : "";
      place.append(made("figure", {}, timeline(schedule, ranks, own, 640, 14),
        made("figcaption", {}, made("strong", {}, name), ` ${said(time)}: ${schedule.steps.length} steps, ${schedule.messages} messages${cost}. `, ...worded(entry.help))));
    }
  }
}

for (const [name, make] of Object.entries({playground, gallery})) {
  const place = document.getElementById(`simcoll-${name}`);
  if (place) make(place);
}
