"use strict";
// Draws what the page's data says. One Gantt chart is a canvas: of thousands of boxes only those in view are drawn, and
// those narrower than a pixel once for each pixel. Times are microseconds since the beginning of the recording.
const data = JSON.parse(document.getElementById("data").textContent);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const draw = (tag, attributes = {}, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const time = (us) => {
  const size = Math.abs(us);
  if (size >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (size >= 1e5) return `${(us / 1e3).toFixed(0)} ms`;
  if (size >= 1e3) return `${(us / 1e3).toFixed(size >= 1e4 ? 1 : 2)} ms`;
  return `${us.toFixed(us >= 100 || us === 0 ? 0 : 1)} µs`;
};
const bytes = (count) => {
  if (count >= 1e6) return `${(count / 1e6).toFixed(count >= 1e7 ? 0 : 1)} MB`;
  return count >= 1e3 ? `${(count / 1e3).toFixed(count >= 1e4 ? 0 : 1)} kB` : `${count} B`;
};
const RAMP = [[226, 88, 34], [236, 151, 31], [196, 178, 44], [104, 168, 74], [40, 150, 140], [92, 110, 190], [132, 94, 180]];
const urgency = (share) => {
  const place = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(place), RAMP.length - 2);
  return `rgb(${RAMP[low].map((from, i) => Math.round(from + (RAMP[low + 1][i] - from) * (place - low))).join(",")})`;
};
const tip = make("div", {id: "tip"});
document.body.append(tip);
const say = (event, text) => {
  if (!text) { tip.style.display = "none"; return; }
  tip.textContent = text;
  tip.style.display = "block";
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
};
const redraws = [];
const redrawAll = () => redraws.forEach((redraw) => redraw());

// ---- Gantt chart ----

const GUTTER = 150, AXIS = 26, WORKS = ["forward", "backward", "update", "wait"];
// Where in a list of boxes, sorted by their begin, those end that begin before an instant.
const before = (boxes, at, field) => {
  let low = 0, high = boxes.length;
  while (low < high) { const middle = (low + high) >> 1; if (boxes[middle][field] < at) low = middle + 1; else high = middle; }
  return low;
};

class Gantt {
  constructor(chart, host) {
    this.chart = chart;
    this.expanded = new Set(chart.ranks.length <= 4 ? chart.ranks.keys() : []);
    for (const rank of chart.ranks) {
      rank.byLane = Array.from({length: rank.lanes}, () => []);
      for (const flight of rank.flights) rank.byLane[flight[0]].push(flight);
      rank.longestWork = rank.works.reduce((most, work) => Math.max(most, work[2]), 0);
    }
    this.end = Math.max(...chart.ranks.map((rank) => Math.max(
      ...rank.works.slice(-1).map((w) => w[1] + w[2]), ...rank.flights.slice(-1).map((f) => f[1] + f[2]), 1)));
    this.canvas = make("canvas", {"aria-label": chart.title, role: "img"});
    const go = (title, label, act) => {
      const button = make("button", {title}, label);
      button.onclick = () => { act(); this.draw(); };
      return button;
    };
    const controls = chart.still ? [] : [
      go("the step before", "◀", () => this.walk(-1)), go("the next step", "▶", () => this.walk(1)),
      go("closer", "+", () => this.zoom(.5)), go("further", "−", () => this.zoom(2)),
      go("everything", "all", () => { this.from = 0; this.to = this.end; }),
      go("the usual step", "reset", () => this.reset()),
    ];
    this.where = make("span", {class: "subtitle"});
    host.append(make("div", {class: "bar"}, ...controls, this.where, legend(chart)), this.canvas);
    this.reset();
    this.listen();
    redraws.push(() => this.draw());
    this.draw();
  }
  reset() { [this.from, this.to] = this.chart.view; }
  zoom(by, at = (this.from + this.to) / 2) {
    const span = Math.min(Math.max((this.to - this.from) * by, 20), this.end * 1.2);
    const share = (at - this.from) / (this.to - this.from);
    this.from = at - share * span; this.to = this.from + span;
  }
  walk(by) {
    const steps = this.chart.steps, middle = (this.from + this.to) / 2;
    const here = Math.max(0, steps.findIndex(([, begin, end]) => begin <= middle && middle < end));
    const next = steps[Math.min(Math.max(here + by, 0), steps.length - 1)];
    if (!next) return;
    const margin = (next[2] - next[1]) * .06;
    this.from = next[1] - margin; this.to = next[2] + margin;
  }
  // The rows of the picture, from the top: {rank, kind, y, height}.
  rows() {
    const rows = [];
    let y = AXIS;
    this.chart.ranks.forEach((rank, index) => {
      const open = this.expanded.has(index), top = y;
      const work = open ? 24 : 13, room = open ? (this.chart.still ? 84 : 150) : 16;
      const each = Math.min(room / Math.max(rank.lanes, 1), 12);
      rows.push({rank, index, kind: "work", y, height: work}); y += work + 2;
      if (rank.copies.length) { rows.push({rank, index, kind: "copies", y, height: open ? 9 : 5}); y += open ? 11 : 6; }
      for (let lane = 0; lane < rank.lanes; lane++) { rows.push({rank, index, kind: "lane", lane, y, height: each}); y += each; }
      rows.push({rank, index, kind: "title", y: top, height: y - top});
      y += open ? 14 : 6;
    });
    this.height = y + 4;
    return rows;
  }
  draw() {
    const rows = this.rows(), ratio = devicePixelRatio || 1, width = this.canvas.clientWidth || 900;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = width * ratio; this.canvas.height = this.height * ratio;
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    this.width = width; this.drawn = 0; this.placed = rows;
    this.scale = (width - GUTTER) / (this.to - this.from);
    this.axis(c);
    c.save(); c.beginPath(); c.rect(GUTTER, AXIS - 2, width - GUTTER, this.height); c.clip();
    const hatch = this.hatch(c);
    for (const row of rows) {
      if (row.kind === "work") this.works(c, row, hatch);
      else if (row.kind === "copies") this.boxes(c, row, row.rank.copies, 0, () => colour("copy"));
      else if (row.kind === "lane") this.lane(c, row);
    }
    for (const row of rows) if (row.kind === "title") this.marks(c, row);
    c.restore();
    this.titles(c, rows);
    this.where.textContent = this.chart.still ? this.chart.note || "" : `${time(this.to - this.from)} in view, ${this.drawn} boxes drawn`;
  }
  x(us) { return GUTTER + (us - this.from) * this.scale; }
  axis(c) {
    c.font = "11.5px system-ui, sans-serif"; c.textBaseline = "middle";
    const zero = this.chart.zero, rough = (this.to - this.from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    c.fillStyle = colour("faint"); c.strokeStyle = colour("grid"); c.lineWidth = 1; c.textAlign = "center";
    for (let at = Math.ceil((this.from - zero) / step) * step; at <= this.to - zero; at += step) {
      const x = Math.round(this.x(at + zero)) + .5;
      c.beginPath(); c.moveTo(x, 18); c.lineTo(x, this.height); c.stroke();
      if (x > GUTTER + 14 && x < this.width - 14) c.fillText(time(at), x, 9);
    }
    c.strokeStyle = colour("faint"); c.setLineDash([3, 3]);
    for (const [, begin] of this.chart.steps) {
      if (begin < this.from || begin > this.to) continue;
      const x = Math.round(this.x(begin)) + .5;
      c.beginPath(); c.moveTo(x, 18); c.lineTo(x, this.height); c.stroke();
    }
    c.setLineDash([]);
  }
  hatch(c) {
    const tile = make("canvas"); tile.width = tile.height = 6;
    const t = tile.getContext("2d");
    t.fillStyle = colour("wait-soft"); t.fillRect(0, 0, 6, 6);
    t.strokeStyle = colour("wait"); t.lineWidth = 1.6;
    t.beginPath(); t.moveTo(-1, 7); t.lineTo(7, -1); t.moveTo(-1, 1); t.lineTo(1, -1); t.moveTo(5, 7); t.lineTo(7, 5); t.stroke();
    return c.createPattern(tile, "repeat");
  }
  // Boxes [?, begin, length, …] of a row, in order; those of a kind that share a pixel are drawn once.
  boxes(c, row, boxes, longest, paint, label) {
    let through = {style: null, x: -1};
    const first = Math.max(before(boxes, this.from - longest, 1) - 1, 0);
    for (let i = first; i < boxes.length && boxes[i][1] <= this.to; i++) {
      const box = boxes[i], left = this.x(box[1]), right = this.x(box[1] + box[2]);
      if (right < GUTTER) continue;
      const style = paint(box);
      if (right < through.x + .7 && style === through.style) continue;
      const x = Math.max(left, GUTTER - 2), width = Math.max(Math.min(right, this.width + 2) - x, .8);
      c.fillStyle = style;
      c.fillRect(x, row.y, width > 3 ? width - .6 : width, Math.max(row.height - (row.height > 4 ? 1 : 0), .8));
      through = {style, x: right};
      this.drawn++;
      if (label && width > 34 && row.height > 10) label(box, x, width);
    }
  }
  works(c, row, hatch) {
    const styles = [colour("forward"), colour("backward"), colour("update"), hatch];
    c.textAlign = "left"; c.textBaseline = "middle"; c.font = `${row.height > 16 ? 11.5 : 9.5}px system-ui, sans-serif`;
    this.boxes(c, row, row.rank.works, row.rank.longestWork, (box) => styles[box[0]], (box, x, width) => {
      if (box[0] === 3 && row.height < 16) return;
      const name = box[0] === 3 ? "waits" : this.chart.names[box[3]];
      const shown = c.measureText(name).width < width - 8 ? name : name.slice(-Math.floor((width - 8) / 6.6));
      if (c.measureText(shown).width > width - 6 || shown.length < 2) return;
      if (box[0] === 3) {
        const wide = c.measureText(shown).width + 8, left = x + (width - wide) / 2;
        c.fillStyle = colour("card"); c.fillRect(left, row.y + 4, wide, row.height - 9);
        c.fillStyle = colour("wait"); c.fillText(shown, left + 4, row.y + row.height / 2);
      } else {
        c.fillStyle = colour("on-box"); c.fillText(shown, x + 4, row.y + row.height / 2);
      }
    });
  }
  lane(c, row) {
    const flights = row.rank.byLane[row.lane], most = Math.max(this.chart.tensors.length - 1, 1);
    this.boxes(c, row, flights, 0, (box) => urgency(box[3] / most));
    // What has left is paler: there the part's sum is on its way.
    c.fillStyle = colour("card"); c.globalAlpha = .45;
    for (let i = Math.max(before(flights, this.from, 1) - 1, 0); i < flights.length && flights[i][1] <= this.to; i++) {
      const [, begin, length, , , , sent] = flights[i];
      if (sent < 0 || (length - sent) * this.scale < 1) continue;
      c.fillRect(this.x(begin + sent), row.y, (length - sent) * this.scale - .6, Math.max(row.height - 1, .8));
    }
    c.globalAlpha = 1;
  }
  marks(c, row) {
    if (!row.rank.preemptions.length) return;
    const work = this.placed.find((each) => each.index === row.index && each.kind === "work");
    const lanes = this.placed.find((each) => each.index === row.index && each.kind === "lane");
    if (!lanes) return;
    c.fillStyle = colour("mark");
    let last = -10;
    const size = work.height > 16 ? 4 : 3;
    for (const [begin] of row.rank.preemptions) {
      const x = this.x(begin);
      if (x < GUTTER || x > this.width || x < last + 3) continue;
      last = x;
      c.beginPath(); c.moveTo(x - size, lanes.y - size - 1); c.lineTo(x + size, lanes.y - size - 1); c.lineTo(x, lanes.y + 1); c.fill();
    }
  }
  titles(c, rows) {
    c.textAlign = "left"; c.textBaseline = "middle";
    for (const row of rows) {
      const middle = row.y + row.height / 2;
      if (row.kind === "title") {
        const open = this.expanded.has(row.index);
        c.fillStyle = colour("ink"); c.font = `600 ${open ? 13 : 11.5}px system-ui, sans-serif`;
        c.fillText(fit(c, row.rank.title, open ? 78 : 140), 0, open ? row.y + 12 : row.y + 8);
      } else if (this.expanded.has(row.index) && (row.kind !== "lane" || row.lane === 0)) {
        c.fillStyle = colour("faint"); c.font = "11.5px system-ui, sans-serif"; c.textAlign = "right";
        const label = {work: "compute", copies: "copies", lane: "network"}[row.kind];
        c.fillText(label, GUTTER - 8, row.kind === "lane" ? row.y + Math.max(row.height * row.rank.lanes / 2, 7) : middle);
        c.textAlign = "left";
      }
    }
  }
  listen() {
    const instant = (event) => this.from + (event.offsetX - GUTTER) / this.scale;
    let grip = null;
    this.canvas.onpointerdown = (event) => {
      grip = {x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, moved: false};
      this.canvas.setPointerCapture(event.pointerId);
    };
    this.canvas.onpointermove = (event) => {
      if (!grip) { say(event, this.under(event.offsetX, event.offsetY)); return; }
      const by = (event.offsetX - grip.x) / this.scale;
      if (Math.abs(event.offsetX - grip.x) > 3) grip.moved = true;
      this.from = grip.from - by; this.to = grip.to - by;
      this.draw();
    };
    this.canvas.onpointerup = (event) => {
      if (grip && !grip.moved && event.offsetX < GUTTER) this.toggle(event.offsetY);
      grip = null;
    };
    this.canvas.onpointerleave = (event) => say(event, "");
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : .8, instant(event));
      this.draw();
    }, {passive: false});
  }
  toggle(y) {
    const row = this.placed.find((each) => each.kind === "title" && y >= each.y && y <= each.y + each.height);
    if (!row) return;
    if (!this.expanded.delete(row.index)) this.expanded.add(row.index);
    this.draw();
  }
  under(x, y) {
    const row = this.placed.find((each) => each.kind !== "title" && y >= each.y && y < each.y + Math.max(each.height, 2));
    if (!row) return "";
    if (x < GUTTER) return [row.rank.title, row.rank.label].filter(Boolean).join("\n");
    const at = this.from + (x - GUTTER) / this.scale, slack = 1 / this.scale;
    const list = row.kind === "work" ? row.rank.works : row.kind === "copies" ? row.rank.copies : row.rank.byLane[row.lane];
    for (let i = before(list, at + slack, 1) - 1, looked = 0; i >= 0 && looked < 400; i--, looked++) {
      const [kind, begin, length, name, step, size, sent] = list[i];
      if (at > begin + length + slack) continue;
      const span = `${time(length)}, from ${time(begin - this.chart.zero)}, step ${step}`;
      if (row.kind === "work") {
        const what = {forward: "forward of", backward: "backward of", update: "update of", wait: "waits for"}[WORKS[kind]];
        return `${what} ${this.chart.names[name]}\n${span}`;
      }
      if (row.kind === "copies") return `${this.chart.tensors[name]}: until its gradient can be sent\n${span}`;
      const left = sent < 0 ? "" : `\nhanded to the network after ${time(sent)}`;
      return `part of ${this.chart.tensors[name]}, ${bytes(size)}\n${span}${left}${this.overtakes(row.rank, name, step)}`;
    }
    return "";
  }
  overtakes(rank, tensor, step) {
    const found = rank.preemptions.find((each) => each[1] === tensor && each[2] === step);
    if (!found) return "";
    const names = found[3].map((each) => this.chart.tensors[each]);
    return `\npreempts ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`;
  }
}
const fit = (c, text, width) => {
  if (c.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && c.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
};
const key = (style, label, kind = "") => make("span", {}, make("i", {style: `background:${style}`, class: kind}), label);
const HATCH = "repeating-linear-gradient(135deg, var(--wait) 0 1.5px, var(--wait-soft) 1.5px 4px)";
const legend = (chart) => make("div", {class: "legend"}, key("var(--forward)", "forward"), key("var(--backward)", "backward"),
  key("var(--update)", "update"), key(HATCH, "waits for communication"),
  ...(chart.ranks.some((rank) => rank.copies.length) ? [key("var(--copy)", "copies")] : []),
  key(`linear-gradient(90deg, ${[0, .25, .5, .75, 1].map(urgency).join(",")})`, "on the network: needed first … last", "ramp"),
  ...(chart.ranks.some((rank) => rank.preemptions.length) ? [make("span", {}, "▼ preempts")] : []));

// ---- step by step, rank by rank ----

const stack = (host, {steps, labels}) => {
  const width = 1180, height = 190, left = 62, bottom = 24, most = Math.max(...steps.map((s) => s.compute + s.exposed + s.idle));
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height + bottom}`, role: "img"});
  const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  for (let at = 0; at <= most; at += tick) {
    const y = height - at / most * (height - 8);
    svg.append(draw("line", {x1: left, x2: width, y1: y, y2: y, stroke: "var(--grid)"}));
    svg.append(draw("text", {x: left - 8, y: y + 4, "text-anchor": "end"}, time(at)));
  }
  const wide = Math.min((width - left) / steps.length, 110), every = Math.ceil(steps.length / 24);
  steps.forEach((step, i) => {
    const x = left + i * wide + (wide > 6 ? 1.5 : 0), group = draw("g");
    let top = height;
    for (const [part, fill] of [[step.hidden, "var(--hidden)"], [step.compute - step.hidden, "var(--forward)"],
      [step.exposed, "var(--wait)"], [step.idle, "var(--idle)"]]) {
      const tall = Math.max(part, 0) / most * (height - 8);
      top -= tall;
      group.append(draw("rect", {x, y: top, width: Math.max(wide - (wide > 6 ? 3 : 0), .5), height: tall, fill}));
    }
    const about = `step ${step.label}: ${time(step.compute + step.exposed + step.idle)}\ncompute ${time(step.compute)}, ` +
      `hiding ${time(step.hidden)} of communication\nexposed communication ${time(step.exposed)}\nidle ${time(step.idle)}`;
    group.onpointermove = (event) => say(event, about);
    group.onpointerleave = (event) => say(event, "");
    svg.append(group);
    if (i % every === 0) svg.append(draw("text", {x: x + wide / 2, y: height + 16, "text-anchor": "middle"}, step.label));
  });
  host.append(make("div", {class: "bar"}, make("div", {class: "legend"}, key("var(--hidden)", labels.hidden),
    key("var(--forward)", labels.compute), key("var(--wait)", labels.exposed), key("var(--idle)", labels.idle))), svg);
};

const stragglers = (host, {ranks, steps, late}) => {
  const left = 62, width = 1180, tall = Math.min(Math.max(200 / ranks.length, 12), 24), height = ranks.length * tall;
  const wide = Math.min((width - left) / steps.length, 110), every = Math.ceil(steps.length / 24);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height + 24}`, role: "img"});
  ranks.forEach((rank, row) => {
    svg.append(draw("text", {x: left - 8, y: row * tall + tall / 2 + 4, "text-anchor": "end"}, rank));
    late[row].forEach((share, column) => {
      if (share === null) return;
      const strength = Math.min(Math.abs(share) / .5, 1) * .9 + (Math.abs(share) > .02 ? .08 : 0);
      const fill = strength < .02 ? "var(--grid)" : `rgba(var(--${share > 0 ? "late" : "early"}), ${strength.toFixed(3)})`;
      const cell = draw("rect", {x: left + column * wide, y: row * tall, width: Math.max(wide - 1, .7), height: tall - 1, rx: 2, fill});
      cell.onpointermove = (event) => say(event, `${rank}, step ${steps[column]}: computes ` +
        `${Math.abs(share * 100).toFixed(0)} % ${share >= 0 ? "longer" : "shorter"} than the median rank`);
      cell.onpointerleave = (event) => say(event, "");
      svg.append(cell);
    });
  });
  steps.forEach((step, column) => {
    if (column % every === 0) svg.append(draw("text", {x: left + (column + .5) * wide, y: height + 16, "text-anchor": "middle"}, step));
  });
  host.append(svg);
};

// ---- tables ----

const SHOWN = 30;
const table = (host, {columns, rows}) => {
  let sorted = null, falling = false, all = false, wanted = "";
  const filter = make("input", {placeholder: "filter by name", type: "search", "aria-label": "filter by name"});
  const more = make("button", {});
  const head = make("tr"), body = make("tbody");
  const render = () => {
    let found = rows.filter((row) => row[0].includes(wanted));
    if (sorted !== null) found = [...found].sort((a, b) => (a[sorted] < b[sorted] ? -1 : a[sorted] > b[sorted] ? 1 : 0) * (falling ? -1 : 1));
    const shown = all ? found : found.slice(0, SHOWN);
    const mosts = columns.map((column, i) => column.unit === "us" ? Math.max(...rows.map((row) => row[i]), 1e-9) : 0);
    body.replaceChildren(...shown.map((row) => make("tr", {}, ...row.map((value, i) => {
      const unit = columns[i].unit, cell = make("td", i ? {} : {class: "name"});
      cell.append(unit === "us" ? time(value) : unit === "bytes" ? bytes(value) : unit === "count" ? value.toFixed(value && value < 10 ? 1 : 0) : value);
      if (unit === "us") cell.append(make("i", {class: "cell", style: `width:${(value / mosts[i] * 46).toFixed(1)}px`}),
        make("i", {class: "cell", style: `width:${(46 - value / mosts[i] * 46).toFixed(1)}px;margin-left:0;background:none`}));
      return cell;
    }))));
    [...head.children].forEach((cell, i) => { cell.textContent = columns[i].title + (i === sorted ? (falling ? " ▾" : " ▴") : ""); });
    more.style.display = found.length > SHOWN ? "" : "none";
    more.textContent = all ? `show ${SHOWN}` : `show all ${found.length}`;
  };
  columns.forEach((column, i) => {
    const cell = make("th", {class: "sortable", title: column.about});
    cell.onclick = () => { falling = sorted === i ? !falling : i > 0; sorted = i; render(); };
    head.append(cell);
  });
  filter.oninput = () => { wanted = filter.value; render(); };
  more.onclick = () => { all = !all; render(); };
  host.append(make("div", {class: "bar"}, filter), make("div", {class: "scroll"}, make("table", {}, make("thead", {}, head), body)),
    make("div", {class: "bar"}, more));
  render();
};

const outlooks = (host, {now, rows}) => {
  const grid = make("div", {class: "outlook"}), most = Math.max(now, ...rows.map((row) => row.us));
  for (const row of [{change: "now", us: now, kind: "now"}, ...rows]) {
    const gain = row.kind === "now" ? "" : now / row.us >= 1.005 ? `${(now / row.us).toFixed(2)}× as fast` : "no faster";
    grid.append(make("div", {}, row.change),
      make("div", {class: "track"}, make("div", {class: `fill ${row.kind}`, style: `width:${row.us / most * 100}%`})),
      make("div", {class: "figure"}, `${time(row.us)}${row.error === null || row.error === undefined ? "" : ` ± ${(row.error * 100).toFixed(0)} %`} `,
        make("small", {}, gain)));
  }
  host.append(grid);
};

// ---- the page ----

const DRAW = {gantt: (chart, host) => new Gantt(chart, host), stack: (part, host) => stack(host, part),
  stragglers: (part, host) => stragglers(host, part), table: (part, host) => table(host, part),
  outlooks: (part, host) => outlooks(host, part), text: () => {}};
const main = document.querySelector("main");
if (data.cards.length) main.append(make("div", {class: "cards"}, ...data.cards.map((card) => make("div", {class: `card ${card.tone || ""}`},
  make("div", {class: "label"}, card.label), make("div", {class: "value"}, card.value), make("div", {class: "about"}, card.about)))));
for (const part of data.sections) {
  const host = make("section", {id: part.id}, make("h2", {}, part.title));
  if (part.about) host.append(make("div", {class: "note"}, part.about));
  main.append(host);
  DRAW[part.kind](part.content, host);
  if (part.remarks.length) host.append(make("ul", {class: "remarks"}, ...part.remarks.map((line) => make("li", {}, line))));
}
document.getElementById("theme").onclick = () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  redrawAll();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("resize", redrawAll);
document.documentElement.dataset.drawn = "yes";
