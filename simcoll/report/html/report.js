"use strict";

// --- tables: a click on a head sorts by it, the next one the other way round ---

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map(row => [row, row.cells[column].dataset.value]);
    rows.sort(([, a], [, b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");  // what is not there stays below
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([row]) => row));
  }));
}

// --- tables that are wider than their box fade where they go on ---

for (const box of document.querySelectorAll(".wide")) {
  const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", mark);
  new ResizeObserver(mark).observe(box);
}

// --- timelines: numbers as lanes on a canvas ---

const ROW = 18, AXIS = 24, FONT = "11px system-ui, Arial, sans-serif";
const tip = document.getElementById("tip");

function duration(ps, digits = 4) {
  const [unit, size] = [["s", 1e12], ["ms", 1e9], ["µs", 1e6], ["ns", 1e3], ["ps", 1]].find(([, s]) => Math.abs(ps) >= s) || ["ps", 1];
  return `${+(ps / size).toPrecision(digits)} ${unit}`;
}

function bytes(count) {
  const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]].find(([, s]) => count >= s) || ["B", 1];
  return `${+(count / size).toPrecision(4)} ${unit}`;
}

function ink(color) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b < 140 ? "#fff" : "#222";
}

class Timeline {
  constructor(box) {
    const data = JSON.parse(box.querySelector("script").textContent);
    Object.assign(this, { box, end: data.end || 1, names: data.names, colors: data.colors, from: 0, to: data.end || 1 });
    this.tracks = data.tracks.map(track => {
      let at = 0;
      const slices = [];
      for (let i = 0; i < track.s.length; i += 6) {
        const [after, lasts, name, color, size, step] = track.s.slice(i, i + 6);
        slices.push({ begin: at + after, end: at + after + lasts, name, color, size, step });
        at += after + lasts;
      }
      return { process: track.p, name: track.n, slices };
    });
    this.axis = box.querySelector("canvas.axis");
    this.lanes = box.querySelector("canvas.lanes");
    this.readout = box.querySelector(".readout");
    this.chosen = null;  // [track, slice]
    box.querySelectorAll("button[data-do]").forEach(button => button.addEventListener("click", () => this.act(button.dataset.do)));
    this.lanes.addEventListener("keydown", event => this.key(event));
    this.lanes.addEventListener("wheel", event => this.wheel(event), { passive: false });
    this.lanes.addEventListener("pointerdown", event => this.grab(event));
    this.lanes.addEventListener("pointermove", event => this.move(event));
    this.lanes.addEventListener("pointerup", () => { this.held = null; });
    this.lanes.addEventListener("pointerleave", () => { tip.hidden = true; });
    this.lanes.addEventListener("dblclick", event => this.zoom(0.5, this.time(event)));
    new ResizeObserver(() => this.draw()).observe(this.lanes.parentElement);
  }

  get gutter() { return Math.min(190, 0.36 * this.width); }  // where names of lanes stand
  get width() { return this.lanes.parentElement.clientWidth; }
  time(event) { return this.from + (event.offsetX - this.gutter) / (this.width - this.gutter) * (this.to - this.from); }
  x(ps) { return this.gutter + (ps - this.from) / (this.to - this.from) * (this.width - this.gutter); }

  view(from, to) {
    const span = Math.min(Math.max(to - from, 20), this.end);
    this.from = Math.min(Math.max(0, from), this.end - span);
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.view(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.view(this.from + by, this.to + by);
  }

  act(what) {
    ({ in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.pan(-0.25), right: () => this.pan(0.25),
      all: () => this.view(0, this.end) })[what]();
  }

  key(event) {
    const acts = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" };
    if (acts[event.key]) this.act(acts[event.key]);
    else if (event.key === "ArrowDown") this.step(1, 0);
    else if (event.key === "ArrowUp") this.step(-1, 0);
    else if (event.key === ".") this.step(0, 1);
    else if (event.key === ",") this.step(0, -1);
    else return;
    event.preventDefault();
  }

  step(tracks, slices) {
    let [track, slice] = this.chosen || [0, slices ? -1 : 0];
    if (this.chosen && tracks) {
      const begin = this.tracks[track].slices[slice]?.begin ?? 0;
      track = Math.min(Math.max(0, track + tracks), this.tracks.length - 1);
      slice = Math.max(0, this.tracks[track].slices.findIndex(one => one.end > begin));
    }
    slice = Math.min(Math.max(0, slice + slices), this.tracks[track].slices.length - 1);
    this.choose(track, slice);
  }

  choose(track, slice) {
    this.chosen = [track, slice];
    const one = this.tracks[track].slices[slice];
    this.readout.textContent = one ? this.tell(track, one).replaceAll("\n", " · ") : "";
    if (one && (one.end < this.from || one.begin > this.to)) {
      const half = (this.to - this.from) / 2;
      this.view(one.begin - half, one.begin + half);
    } else this.draw();
  }

  tell(track, one) {
    const lane = this.tracks[track];
    const more = [one.size >= 0 ? bytes(one.size) : "", one.step >= 0 ? `step ${one.step}` : ""].filter(Boolean).join(", ");
    const when = `${duration(one.end - one.begin)}, from ${duration(one.begin, 6)} to ${duration(one.end, 6)}`;
    return [`${lane.process} ${lane.name}`.trim(), this.names[one.name] + (more ? `, ${more}` : ""), when].join("\n");
  }

  wheel(event) {
    if (!(event.ctrlKey || event.metaKey)) return;  // without, the page scrolls
    event.preventDefault();
    this.zoom(Math.exp(event.deltaY * 0.002), this.time(event));
  }

  grab(event) {
    this.held = { x: event.offsetX, from: this.from, to: this.to };
    const found = this.at(event);
    if (found) this.choose(...found);
    this.lanes.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (this.held) {
      const by = (this.held.x - event.offsetX) / (this.width - this.gutter) * (this.held.to - this.held.from);
      this.view(this.held.from + by, this.held.to + by);
      tip.hidden = true;
      return;
    }
    const found = this.at(event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = this.tell(found[0], this.tracks[found[0]].slices[found[1]]);
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  }

  at(event) {
    const track = Math.floor(event.offsetY / ROW);
    if (event.offsetX < this.gutter || !this.tracks[track]) return null;
    const time = this.time(event), slack = 2 * (this.to - this.from) / (this.width - this.gutter);
    const slice = this.tracks[track].slices.findIndex(one => one.end + slack >= time);
    const found = this.tracks[track].slices[slice];
    return found && found.begin - slack <= time ? [track, slice] : null;
  }

  canvas(canvas, height) {
    const scale = devicePixelRatio || 1, width = this.width;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    this.letter = context.measureText("chunk 10 from rank 7").width / 20;
    return context;
  }

  draw() {
    if (this.width < this.gutter + 50) return;  // it is folded
    const style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue(name).trim();
    const ticks = this.ticks();
    const axis = this.canvas(this.axis, AXIS);
    axis.fillStyle = color("--soft");
    const roomy = ticks.filter(tick => this.x(tick) < this.width - 60);
    roomy.forEach(tick => axis.fillText(tick ? duration(tick, 6) : "0", this.x(tick) + 3, AXIS / 2));
    const lanes = this.canvas(this.lanes, this.tracks.length * ROW);
    lanes.strokeStyle = color("--line");
    lanes.lineWidth = 0.5;
    ticks.forEach(tick => this.line(lanes, this.x(tick), 0, this.x(tick), this.tracks.length * ROW));
    this.tracks.forEach((track, number) => this.lane(lanes, track, number, color));
  }

  line(context, ...ends) {
    context.beginPath();
    context.moveTo(ends[0], ends[1]);
    context.lineTo(ends[2], ends[3]);
    context.stroke();
  }

  lane(context, track, number, color) {
    const top = number * ROW, opens = !number || this.tracks[number - 1].process !== track.process;
    if (opens && number) this.line(context, 0, top, this.width, top);
    context.save();
    context.beginPath();
    context.rect(this.gutter, top, this.width - this.gutter, ROW);
    context.clip();
    track.slices.forEach((one, place) => this.slice(context, one, top, this.chosen && this.chosen[0] === number && this.chosen[1] === place, color));
    context.restore();
    context.fillStyle = color("--ground");
    context.fillRect(0, top + 1, this.gutter - 4, ROW - 2);
    context.fillStyle = color(opens ? "--ink" : "--soft");
    context.fillText(opens ? `${track.process} ${track.name}` : `    ${track.name}`, 4, top + ROW / 2, this.gutter - 12);
  }

  slice(context, one, top, chosen, color) {
    const left = this.x(one.begin), right = this.x(one.end);
    if (right < this.gutter || left > this.width) return;
    const width = Math.max(right - left - (right - left > 3 ? 0.5 : 0), 0.7);
    context.fillStyle = this.colors[one.color];
    context.fillRect(left, top + 2, width, ROW - 4);
    if (chosen) {
      context.strokeStyle = color("--ink");
      context.lineWidth = 2;
      context.strokeRect(left, top + 2, width, ROW - 4);
      context.lineWidth = 0.5;
    }
    const shown = Math.min(right, this.width) - Math.max(left, this.gutter);
    if (shown < 30) return;
    const text = this.names[one.name], room = Math.floor((shown - 8) / this.letter);
    context.fillStyle = ink(this.colors[one.color]);
    context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, Math.max(left, this.gutter) + 3, top + ROW / 2 + 0.5);
  }

  ticks() {
    const wanted = (this.to - this.from) / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(wanted)), step = [1, 2, 5, 10].find(times => times * power >= wanted) * power;
    const found = [];
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) found.push(at);
    return found;
  }
}

const timelines = [...document.querySelectorAll(".lanes-of-a-point")].map(box => new Timeline(box));
const redraw = () => timelines.forEach(one => one.draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.querySelectorAll("details").forEach(one => one.addEventListener("toggle", redraw));
addEventListener("beforeprint", () => {
  document.querySelectorAll("details.point").forEach(one => { one.open = true; });
  redraw();
});
