"use strict";
// A page of one or several jobs. `state` of a job comes first, and after every reconnection; then facts, one by one.
const MAX_POINTS = 1800, MAX_MARKERS = 200, MAX_LINKS = 10000, SHOWN_S = 300;
const jobs = new Map();
let chosen = null, source = null, isDue = false;
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");

// ---- facts ----

const trimmed = (list, most) => (list.length > most ? list.slice(-most) : list);
const trimmedLinks = (list) => trimmed(list, list.length ? Math.max(1, Math.floor(MAX_LINKS / last(list).links.length)) : 1);

function take({job: name, kind, data}) {
  const known = jobs.get(name) || {points: [], links: [], markers: []};
  if (kind === "state") {
    const isRestart = known.job && data.job && known.job.run !== data.job.run;
    // A page of several jobs may know of the time before, too.
    const before = (old, fresh) => fresh.length ? old.filter((each) => each.time < fresh[0].time) : old;
    const restart = {time: data.job ? data.job.started : Date.now() / 1e3, kind: "restart", text: "the job was started again", step: null};
    jobs.set(name, {...data,
      points: trimmed([...(isRestart ? before(known.points, data.points) : []), ...data.points], MAX_POINTS),
      links: trimmedLinks([...(isRestart ? before(known.links, data.links) : []), ...data.links]),
      markers: trimmed([...(isRestart ? before([...known.markers, restart], data.markers) : []), ...data.markers], MAX_MARKERS)});
  } else {
    if (kind === "point") known.points = trimmed([...known.points, data], MAX_POINTS);
    else if (kind === "links") known.links = trimmedLinks([...known.links, data]);
    else if (kind === "marker") known.markers = trimmed([...known.markers, data], MAX_MARKERS);
    else known[kind] = data;
    jobs.set(name, known);
  }
  if (chosen === null || !jobs.has(chosen)) chosen = name;
  redraw();
}

function connect() {
  source = new EventSource("events" + (token ? "?token=" + encodeURIComponent(token) : ""));
  source.onopen = () => show("live", "good");
  source.onmessage = (event) => { show("live", "good"); take(JSON.parse(event.data)); };
  source.onerror = () => {
    show("the job does not answer: trying again", "bad");
    // A browser gives up after some answers; this page does not.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
}

function show(text, tone) { const pill = $("connection"); pill.textContent = text; pill.className = "pill " + tone; }

// ---- words ----

const ms = (s) => s == null ? "–" : s === 0 ? "0 ms" : s >= 10 ? s.toFixed(1) + " s" : s >= 0.1 ? (s * 1e3).toFixed(0) + " ms" : (s * 1e3).toFixed(1) + " ms";
const percent = (share) => (share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %";
const size = (bytes) => bytes == null ? "whole tensors" : bytes >= 1 << 20 ? +(bytes / (1 << 20)).toFixed(1) + " MiB" : bytes >= 1024 ? +(bytes / 1024).toFixed(1) + " KiB" : bytes + " B";
const rate = (bytes) => { const bits = bytes * 8; return bits >= 1e9 ? (bits / 1e9).toFixed(2) + " Gbit/s" : bits >= 1e6 ? (bits / 1e6).toFixed(bits < 1e8 ? 1 : 0) + " Mbit/s" : (bits / 1e3).toFixed(0) + " kbit/s"; };
const clock = (time) => new Date(time * 1e3).toLocaleTimeString([], {hour12: false});
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));
const tipped = (tip) => ` data-tip="${escaped(tip)}"`;
const last = (list) => list[list.length - 1];

// ---- charts ----

function ticks(most, count) {
  if (!(most > 0)) return [0, 1];
  const raw = most / count, power = 10 ** Math.floor(Math.log10(raw));
  const by = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  return Array.from({length: Math.floor(most / by + 1e-6) + 1}, (_, i) => i * by);
}

// A frame for values over the last minutes: scales, and the markup of its axes.
function frame(width, height, points, most, label) {
  const left = 72, right = width - 8, top = 12, bottom = height - 24;
  const end = last(points).time, begin = Math.max(points[0].time, end - SHOWN_S) , span = Math.max(end - begin, 10);
  const x = (time) => right - (end - time) / span * (right - left);
  const y = (value) => bottom - value / most * (bottom - top);
  let out = "";
  for (const value of ticks(most, 4)) out += `<line class="grid" x1="${left}" x2="${right}" y1="${y(value)}" y2="${y(value)}"/>` +
    `<text x="${left - 8}" y="${y(value) + 4}" text-anchor="end">${label(value)}</text>`;
  for (const share of [0, 0.25, 0.5, 0.75, 1]) { const time = end - span * (1 - share);
    out += `<text x="${x(time)}" y="${height - 6}" text-anchor="${share === 0 ? "start" : share === 1 ? "end" : "middle"}">${clock(time)}</text>`; }
  return {x, y, left, right, top, bottom, begin: end - span, markup: out};
}

// Lines break where nothing came for a while: the job was down.
function path(points, x, y) {
  let out = "", before = null;
  for (const [time, value] of points) {
    if (value == null) { before = null; continue; }
    out += `${before !== null && time - before < 15 ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
    before = time;
  }
  return out;
}

const empty = (width, height, text) => `<text class="empty" x="${width / 2}" y="${height / 2}" text-anchor="middle">${escaped(text)}</text>`;
const recent = (job) => { const end = last(job.points).time; return job.points.filter((p) => p.time >= end - SHOWN_S); };

function drawSteps(job) {
  const width = 1180, height = 250;
  if (!job.points.length) return empty(width, height, "No step is over yet.");
  const points = recent(job), sorted = points.map((p) => p.step_s).sort((a, b) => a - b);
  // One step that took long for another reason does not flatten the others.
  const most = 1.15 * Math.max(Math.min(last(sorted), 3 * sorted[sorted.length >> 1]), ...points.map((p) => p.bound_s || 0));
  const f = frame(width, height, points, most, ms), top = (v) => f.y(Math.min(v, most));
  let out = f.markup;
  for (let from = 0; from < points.length;) {
    let to = from + 1; while (to < points.length && points[to].time - points[to - 1].time < 15) to++;
    const run = points.slice(from, to);
    if (run.length > 1) out += `<path fill="var(--wait-soft)" opacity=".75" d="${path(run.map((p) => [p.time, p.step_s]), f.x, top)}` +
      [...run].reverse().map((p) => `L${f.x(p.time).toFixed(1)} ${top(p.step_s - Math.min(p.exposed_s, p.step_s)).toFixed(1)}`).join("") + `Z"/>`;
    from = to;
  }
  out += `<path fill="none" stroke="var(--bound)" stroke-width="2" stroke-dasharray="6 4" d="${path(points.map((p) => [p.time, p.bound_s]), f.x, top)}"/>`;
  out += `<path fill="none" stroke="var(--step)" stroke-width="2" stroke-linejoin="round" d="${path(points.map((p) => [p.time, p.step_s]), f.x, top)}"/>`;
  for (const p of points) out += `<rect x="${f.x(p.time) - 3}" y="${f.top}" width="6" height="${f.bottom - f.top}" fill="transparent"` +
    tipped(`step ${p.step}, ${clock(p.time)}\n${ms(p.step_s)} a step, ${ms(p.exposed_s)} exposed\nT* ${ms(p.bound_s)}`) + "/>";
  for (const m of job.markers) if (m.time >= f.begin) out += mark(m, f);
  return out;
}

const SIGNS = {plan: ["◆", "--plan"], tuner: ["◇", "--plan"], fault: ["▲", "--wait"], start: ["●", "--faint"], restart: ["●", "--faint"], end: ["●", "--faint"]};

function mark(m, f) {
  const [sign, colour] = SIGNS[m.kind] || SIGNS.start, x = f.x(m.time);
  return `<g${tipped(`${clock(m.time)}${m.step == null ? "" : `, from step ${m.step}`}\n${m.text}`)}><line x1="${x}" x2="${x}" y1="${f.top}" y2="${f.bottom}" ` +
    `stroke="var(${colour})" stroke-dasharray="2 3" opacity=".6"/><text x="${x}" y="${f.top}" text-anchor="middle" style="fill:var(${colour});font-size:13px">${sign}</text></g>`;
}

const COLOURS = ["--forward", "--part", "--update", "--plan", "--wait", "--backward"];
const line = (colour, dash, d) => `<path fill="none" stroke="var(${colour})" stroke-width="2" stroke-dasharray="${dash}" stroke-linejoin="round" d="${d}"/>`;
const key = (colour, text) => `<span><i style="background:var(${colour})"></i>${escaped(text)}</span>`;
const upOf = (r) => r.sent_bytes_per_s + r.shared_bytes_per_s / 2, downOf = (r) => r.received_bytes_per_s + r.shared_bytes_per_s / 2;

function drawTraffic(job) {
  const width = 570, height = 210;
  if (!job.points.length) return empty(width, height, "Nothing has been sent yet.");
  const points = recent(job), ranks = last(points).ranks.map((r) => r.rank).slice(0, COLOURS.length);
  const of = (p, rank) => p.ranks.find((r) => r.rank === rank);
  const most = 1.15 * Math.max(1, ...points.flatMap((p) => p.ranks.flatMap((r) => [upOf(r), downOf(r)])));
  const f = frame(width, height, points, most, rate);
  let out = f.markup;
  ranks.forEach((rank, place) => { for (const [value, dash] of [[upOf, ""], [downOf, "4 3"]])
    out += line(COLOURS[place], dash, path(points.map((p) => [p.time, of(p, rank) ? value(of(p, rank)) : null]), f.x, f.y)); });
  $("traffic-legend").innerHTML = ranks.map((rank, place) => key(COLOURS[place], `rank ${rank}`)).join("") + "<span>solid: sent, dashed: received</span>";
  return out;
}

// Who sends to whom, and how fast, as senders tell; of a server, as those who receive do.
const flowsOf = (told) => new Map(told.links.flatMap((l) => [[`${l.rank} → ${l.peer}`, l.sent_bytes_per_s],
  ...(l.peer.startsWith("server") ? [[`${l.peer} → ${l.rank}`, l.received_bytes_per_s]] : [])]));

function drawLinks(job) {
  const width = 1180, height = 210, mostLines = 2 * COLOURS.length;
  if (!job.links.length) { $("links-note").textContent = $("links-legend").innerHTML = ""; return empty(width, height, "Nothing is known of single links."); }
  const end = last(job.links).time, told = job.links.filter((each) => each.time >= end - SHOWN_S).map((each) => ({time: each.time, flows: flowsOf(each)}));
  const all = [...last(told).flows].sort(([, a], [, b]) => b - a), names = all.slice(0, mostLines).map(([name]) => name).sort();
  const most = 1.15 * Math.max(1, ...told.flatMap((each) => names.map((name) => each.flows.get(name) || 0)));
  const f = frame(width, height, told, most, rate), colour = (place) => COLOURS[place % COLOURS.length], dash = (place) => place < COLOURS.length ? "" : "4 3";
  let out = f.markup;
  names.forEach((name, place) => { out += `<g${tipped(`${name}\n${rate(last(told).flows.get(name))}`)}>` +
    line(colour(place), dash(place), path(told.map((each) => [each.time, each.flows.get(name) ?? null]), f.x, f.y)) + "</g>"; });
  $("links-note").textContent = "From a rank or a server to another" + (all.length > names.length ? `: the busiest ${names.length} of ${all.length}` : "");
  $("links-legend").innerHTML = names.map((name, place) => key(colour(place), name + (dash(place) ? " (dashed)" : ""))).join("");
  return out;
}

function drawQueue(job) {
  const width = 570, height = 210, tensors = job.job && job.job.tensors || [];
  const point = last(job.points);
  if (!point || !tensors.length) return empty(width, height, "Not known yet.");
  const queued = new Map(point.queue), total = point.queue.reduce((sum, [, bytes]) => sum + bytes, 0);
  $("queue-note").textContent = `When backward of step ${point.step} ended on rank 0, ${point.queue.length} of ${tensors.length} gradients ` +
    `(${size(total)}) had not come back as averages. 0 is used first.`;
  const left = 62, right = width - 8, top = 12, bottom = height - 24, most = Math.max(...tensors.map(([, bytes]) => bytes));
  const step = (right - left) / tensors.length, y = (bytes) => bottom - Math.sqrt(bytes / most) * (bottom - top);
  let out = "";
  for (const value of [most / 16, most / 4, most]) out += `<line class="grid" x1="${left}" x2="${right}" y1="${y(value)}" y2="${y(value)}"/><text x="${left - 8}" y="${y(value) + 4}" text-anchor="end">${size(Math.round(value))}</text>`;
  tensors.forEach(([name, bytes], priority) => {
    const x = left + priority * step, wide = Math.max(step * 0.8, 0.7), waiting = queued.get(priority) || 0;
    out += `<g${tipped(`priority ${priority}: ${name}\n${size(bytes)}, ${waiting ? "under way" : "averaged"}`)}><rect x="${x}" y="${y(bytes)}" width="${wide}" height="${bottom - y(bytes)}" fill="var(--grid)"/>` +
      (waiting ? `<rect x="${x}" y="${y(waiting)}" width="${wide}" height="${bottom - y(waiting)}" fill="var(--part)"/>` : "") + "</g>";
  });
  out += `<line class="axis" x1="${left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>`;
  for (const share of [0, 0.5, 1]) { const priority = Math.round(share * (tensors.length - 1));
    out += `<text x="${left + (priority + 0.4) * step}" y="${height - 6}" text-anchor="middle">${priority}</text>`; }
  return out;
}

function drawGantt(job) {
  const gantt = job.gantt, svg = $("gantt");
  if (!gantt) { svg.setAttribute("viewBox", "0 0 1180 60"); $("gantt-note").textContent = "";
    return empty(1180, 60, "A chart is drawn while a timeline is taken: set LEGATO_TIMELINE=run.json"); }
  const rows = [...new Set(["forward", "backward", ...gantt.boxes.map((b) => b.row)])], high = 20, left = 74, right = 1172;
  const height = rows.length * (high + 4) + 30;
  svg.setAttribute("viewBox", `0 0 1180 ${height}`);
  $("gantt-note").textContent = `Step ${gantt.step} of rank 0, ${ms(gantt.seconds)}: from the end of one backward pass to the end of the next`;
  const x = (s) => left + s / gantt.seconds * (right - left);
  let out = "";
  for (const s of ticks(gantt.seconds, 8)) out += `<line class="grid" x1="${x(s)}" x2="${x(s)}" y1="0" y2="${height - 22}"/><text x="${x(s)}" y="${height - 6}" text-anchor="middle">${ms(s)}</text>`;
  rows.forEach((row, place) => { out += `<text x="${left - 8}" y="${place * (high + 4) + 15}" text-anchor="end">${escaped(row)}</text>`; });
  for (const b of gantt.boxes) { const place = rows.indexOf(b.row), wide = Math.max(x(b.end_s) - x(b.begin_s), 0.8);
    out += `<g${tipped(`${b.kind === "part" ? "part of " : b.kind + " "}${b.name}\n${ms(b.end_s - b.begin_s)}`)}><rect x="${x(b.begin_s)}" y="${place * (high + 4)}" width="${wide}" height="${high}" rx="2" fill="var(--${b.kind})"/>` +
      (wide > 60 ? `<text x="${x(b.begin_s) + 4}" y="${place * (high + 4) + 14}" style="fill:#fff;font-size:10.5px">${escaped(b.name.slice(0, Math.floor(wide / 6.2)))}</text>` : "") + "</g>"; }
  return out;
}

// Columns are partitions, rows are policies with so many parts in flight; filled with what was measured, else predicted.
function drawTuning(job) {
  const width = 570, tuning = job.tuning, svg = $("tuning");
  $("tuning-note").textContent = tuning ? tuning.said : "";
  if (!tuning || !(tuning.trials.length + tuning.predictions.length)) { svg.setAttribute("viewBox", "0 0 570 150"); return empty(width, 150, "Nothing has been tried: the tuner is off, or training has just begun."); }
  const rowOf = (policy, partition, credit) => partition && credit ? `${policy} × ${+(credit / partition).toFixed(1)}` : policy;
  const cells = new Map(), put = (policy, partition, credit, values) => {
    const row = rowOf(policy, partition, credit), key = `${row}|${partition}`;
    cells.set(key, {row, partition, ...cells.get(key), ...values});
    return key; };
  for (const [policy, partition, credit, seconds] of tuning.predictions) put(policy, partition, credit, {predicted: seconds});
  const keys = tuning.trials.map((t) => put(t.policy, t.partition_bytes, t.credit_bytes, {measured: t.step_s, steps: t.num_steps}));
  const rows = [...new Set([...cells.values()].map((c) => c.row))];
  const columns = [...new Set([...cells.values()].map((c) => c.partition))].sort((a, b) => (a === null) - (b === null) || a - b);
  const left = 128, top = 4, high = Math.max(30, Math.min(46, 150 / rows.length)), wide = (width - left - 4) / columns.length;
  svg.setAttribute("viewBox", `0 0 ${width} ${top + rows.length * high + 30}`);
  const times = [...cells.values()].map((c) => c.measured ?? c.predicted).filter((t) => t != null), least = Math.min(...times), most = Math.max(...times);
  const warmth = (t) => most > least ? (t - least) / (most - least) : 0;
  const centre = (key) => { const c = cells.get(key); return [left + (columns.indexOf(c.partition) + 0.5) * wide, top + (rows.indexOf(c.row) + 0.5) * high]; };
  let out = "";
  for (const c of cells.values()) {
    const t = c.measured ?? c.predicted, w = t == null ? 0 : warmth(t), x = left + columns.indexOf(c.partition) * wide, y = top + rows.indexOf(c.row) * high;
    const colour = t == null ? "var(--grid)" : `rgba(var(${w < 0.5 ? "--cold" : "--hot"}), ${(0.2 + 0.75 * Math.abs(w - 0.5) * 2).toFixed(2)})`;
    out += `<g${tipped(`${c.row.replace(" × ", ", parts in flight: ")}, parts of ${size(c.partition)}\n` + (c.measured != null ? `measured ${ms(c.measured)} (${c.steps} steps)` : "") + (c.predicted != null ? `\npredicted ${ms(c.predicted)}` : ""))}>` +
      `<rect x="${x + 1}" y="${y + 1}" width="${wide - 2}" height="${high - 2}" rx="3" fill="${colour}" ${c.measured != null ? 'stroke="var(--ink)" stroke-width="1.2"' : ""}/>` +
      (t != null && wide > 30 ? `<text x="${x + wide / 2}" y="${y + high - 5}" text-anchor="middle" style="font-size:9.5px;fill:var(--ink)">${(t * 1e3).toFixed(t < 0.1 ? 1 : 0)}</text>` : "") + "</g>"; }
  rows.forEach((row, place) => { out += `<text x="${left - 8}" y="${top + (place + 0.5) * high + 4}" text-anchor="end">${escaped(row)}</text>`; });
  columns.forEach((c, place) => { out += `<text x="${left + (place + 0.5) * wide}" y="${top + rows.length * high + 14}" text-anchor="middle" style="font-size:9.5px">${c === null ? "whole" : size(c).replace("iB", "")}</text>`; });
  out += `<text x="${left - 8}" y="${top + rows.length * high + 14}" text-anchor="end">parts of</text>`;
  const way = tuning.path.map((place) => centre(keys[place]));
  if (way.length > 1) out += `<path fill="none" stroke="var(--plan)" stroke-width="2" stroke-linejoin="round" opacity=".85" d="M${way.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}"/>`;
  if (way.length) { const [x, y] = last(way); out += `<circle cx="${x}" cy="${y}" r="5" fill="var(--plan)" stroke="var(--card)" stroke-width="1.5"/>`; }
  return out;
}

// ---- tables ----

function drawCards(job) {
  const p = last(job.points), card = (label, value, about) => `<div class="card"><div class="label">${label}</div><div class="value" data-figure="${label}">${value}</div><div class="about">${about}</div></div>`;
  if (!p) return card("Step", "–", "waiting for the first steps");
  const up = Math.max(...p.ranks.map(upOf)), down = Math.max(...p.ranks.map(downOf));
  return card("Step", p.step, `${p.steps_per_s.toFixed(2)} steps/s`) + card("A step takes", ms(p.step_s), "on the slowest rank") +
    card("T*", ms(p.bound_s), p.bound_s ? `a step is ${(p.step_s / p.bound_s).toFixed(2)} of it` : "not known yet") +
    card("Exposed", ms(p.exposed_s), p.step_s ? `${percent(p.exposed_s / p.step_s)} of a step` : "") +
    card("Busiest link", rate(Math.max(up, down)), up >= down ? "sent" : "received") +
    card("Workers", job.job ? job.job.workers : "–", `${p.ranks.length} heard of`);
}

const drawMarkers = (job) => [...job.markers].reverse().map((m) => { const [sign, colour] = SIGNS[m.kind] || SIGNS.start;
  return `<tr><td>${clock(m.time)}</td><td style="color:var(${colour})">${sign} ${m.kind}</td><td>${escaped(m.text)}${m.step == null ? "" : `, from step ${m.step}`}</td></tr>`; }).join("");

function drawRanks(job) {
  const p = last(job.points); if (!p) return "";
  return "<tr><th>rank</th><th>step</th><th>a step takes</th><th>exposed</th><th>sent</th><th>received</th><th>shared memory</th><th>in flight</th></tr>" +
    p.ranks.map((r) => `<tr><td>${r.rank}</td><td>${r.step}</td><td>${ms(r.step_s)}</td><td>${ms(r.exposed_s)}</td><td>${rate(r.sent_bytes_per_s)}</td><td>${rate(r.received_bytes_per_s)}</td><td>${rate(r.shared_bytes_per_s)}</td><td>${size(r.in_flight_bytes)}</td></tr>`).join("");
}

// ---- all of it ----

function redraw() { if (!isDue) { isDue = true; requestAnimationFrame(() => { isDue = false; draw(); }); } }

function draw() {
  $("jobs").innerHTML = jobs.size > 1 ? [...jobs.keys()].map((name) => `<button class="${name === chosen ? "chosen" : ""}" data-job="${escaped(name)}">${escaped(name)}</button>`).join("") : "";
  const job = jobs.get(chosen);
  if (!job) return;
  const facts = job.job || {};
  $("about").textContent = `${facts.name || ""} on ${facts.host || ""}, since ${clock(facts.started || 0)}. ${facts.about || ""}`;
  $("cards").innerHTML = drawCards(job);
  $("steps-note").textContent = job.points.length ? `The last ${Math.round(SHOWN_S / 60)} minutes` : "";
  for (const [id, drawing] of [["steps", drawSteps], ["traffic", drawTraffic], ["links", drawLinks], ["queue", drawQueue], ["gantt", drawGantt], ["tuning", drawTuning]]) $(id).innerHTML = drawing(job);
  $("markers").innerHTML = drawMarkers(job);
  $("ranks").innerHTML = drawRanks(job);
  document.body.dataset.points = job.points.length;
  document.body.dataset.run = facts.run || "";
}

$("jobs").onclick = (event) => { if (event.target.dataset.job) { chosen = event.target.dataset.job; draw(); } };
$("theme").onclick = () => {
  const root = document.documentElement, isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark"; draw(); };
document.addEventListener("mousemove", (event) => {
  const found = event.target.closest && event.target.closest("[data-tip]"), tip = $("tip");
  tip.style.display = found ? "block" : "none";
  if (found) { tip.textContent = found.dataset.tip; tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px"; tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px"; } });
connect();
