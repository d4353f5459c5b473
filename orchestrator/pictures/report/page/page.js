// Draws the maps and the curves of the report from the JSON in #data. Loads nothing, writes text only.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const trials = data.trials;
const numTrials = trials.id.length;
const MARKS = { stable: "", spiked: "▲", diverged: "✕", stalled: "▬", errored: "!", unknown: "?", not_run: "" };
const WORSE_FIRST = ["diverged", "stalled", "spiked"];
const SEED_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8a8a8a"];
const SEED_DASHES = ["", "6 3", "2 2", "8 3 2 3"];
const STABLE_COLOURS = ["#D55E00", "#F6E8C3", "#0072B2"];
const VALUE_COLOURS = ["#fde725", "#a0da39", "#4ac16d", "#1fa187", "#277f8e", "#365c8d", "#46327e", "#440154"];
const REDUCTIONS = ["worst", "median", "best"];
const ROOM_FOR_TEXT = 400;

const choice = { x: 0, y: data.axes.length > 1 ? 1 : -1, metric: "fraction", slices: data.axes.map(() => "worst") };
let selected = null;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shown(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (value === 0 || (size >= 0.01 && size < 1000)) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

function median(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!known.length) return null;
  const middle = known.length >> 1;
  return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
}

// --- cells -------------------------------------------------------------------------------------

// As cell_state of outcomes.py has it: stable is a cell of which every seed that was asked for is, and a cell with seeds
// outstanding is unknown, whatever the others did.
function stateOf(counts, numFinished, numSeeds) {
  const numErrored = counts.errored || 0;
  if (!numFinished) return numErrored ? "errored" : "not_run";
  if (numFinished + numErrored < numSeeds) return "unknown";
  let [state, most] = [numErrored ? "unknown" : "stable", 0];
  for (const label of WORSE_FIRST) {
    if ((counts[label] || 0) > most) [state, most] = [label, counts[label]];
  }
  return state;
}

const isKnown = (cell) => data.outcomes.includes(cell.state);

function makeCell(members, metric) {
  const counts = {};
  for (const i of members) counts[trials.label[i]] = (counts[trials.label[i]] || 0) + 1;
  const finished = members.filter((i) => data.outcomes.includes(trials.label[i]));
  const state = stateOf(counts, finished.length, members.length);
  const fraction = finished.length ? (counts.stable || 0) / finished.length : null;
  const value = metric === "fraction" ? fraction : median(finished.map((i) => trials[metric][i]));
  return { members, counts, numFinished: finished.length, state, fraction, value };
}

// Where cells that are not known decide whether the worst, median or best is stable, it is one of them.
function reduced(cells, how, metric) {
  const known = cells.filter(isKnown);
  const unknown = cells.filter((cell) => !isKnown(cell));
  const place = { best: 0, median: cells.length >> 1, worst: cells.length - 1 }[how];
  const numStable = known.filter((cell) => cell.state === "stable").length;
  if (numStable <= place && place < numStable + unknown.length) {
    const rank = (cell) => 2 * cell.numFinished + (cell.counts.errored ? 1 : 0);
    return unknown.reduce((most, cell) => (rank(cell) > rank(most) ? cell : most));
  }
  const loss = (cell) => median(cell.members.map((i) => trials.final_loss[i])) ?? Infinity;
  const tie = (cell) => (metric === "fraction" ? loss(cell) : cell.value ?? Infinity);
  known.sort((a, b) => b.fraction - a.fraction || tie(a) - tie(b) || 0);
  return known[place < numStable ? place : place - unknown.length];
}

function mapCells() {
  const { x, y, metric, slices } = choice;
  const groups = new Map();
  const others = data.axes.map((_, a) => a).filter((a) => a !== x && a !== y);
  for (let i = 0; i < numTrials; i++) {
    const at = trials.cell[i];
    if (others.some((a) => !REDUCTIONS.includes(slices[a]) && at[a] !== Number(slices[a]))) continue;
    const key = `${at[x]},${y < 0 ? 0 : at[y]}`;
    const inner = others.map((a) => at[a]).join();
    if (!groups.has(key)) groups.set(key, new Map());
    const cells = groups.get(key);
    if (!cells.has(inner)) cells.set(inner, []);
    cells.get(inner).push(i);
  }
  const how = others.map((a) => slices[a]).find((slice) => REDUCTIONS.includes(slice)) || "worst";
  const found = new Map();
  for (const [key, inner] of groups) {
    found.set(key, reduced([...inner.values()].map((members) => makeCell(members, metric)), how, metric));
  }
  return found;
}

// --- colours -----------------------------------------------------------------------------------

function mixed(colours, unit) {
  const place = Math.min(Math.max(unit, 0), 1) * (colours.length - 1);
  const i = Math.min(Math.floor(place), colours.length - 2);
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [from, to] = [rgb(colours[i]), rgb(colours[i + 1])];
  return from.map((value, c) => Math.round(value + (place - i) * (to[c] - value)));
}

function colourScale(cells) {
  if (choice.metric === "fraction") return { low: 0, high: 1, unit: (v) => v, colours: STABLE_COLOURS };
  const all = [...cells.values()].filter((cell) => cell.value !== null);
  const calm = all.filter((cell) => cell.state !== "diverged" && cell.state !== "unknown");
  const values = (calm.length ? calm : all).map((cell) => cell.value);
  const low = Math.min(...values);
  const high = Math.max(...values);
  const isLog = low > 0 && high / low > 30;
  const place = isLog ? Math.log : (v) => v;
  const unit = (v) => (high > low ? (place(v) - place(low)) / (place(high) - place(low)) : 0.5);
  const isClipped = all.some((cell) => cell.value < low || cell.value > high);
  return { low, high, unit, colours: VALUE_COLOURS, isClipped };
}

function paint(cell, scale) {
  if (cell.state === "not_run") return null;
  if (cell.value === null) return { background: "#ffffff", ink: "#000000" };
  const [r, g, b] = mixed(scale.colours, scale.unit(cell.value));
  const ink = 0.299 * r + 0.587 * g + 0.114 * b > 128 ? "#000000" : "#ffffff";
  return { background: `rgb(${r},${g},${b})`, ink };
}

// --- words -------------------------------------------------------------------------------------

const metricName = (metric) => (metric === "fraction" ? "fraction of stable seeds" : data.metrics[metric]);

function cellName(cell) {
  const at = trials.cell[cell.members[0]];
  return data.axes.map((axis, a) => `${axis.name}=${axis.labels[at[a]]}`).join(" ");
}

function cellWords(cell) {
  const counts = Object.entries(cell.counts).map(([label, count]) => `${count} ${label}`).join(", ");
  const value = choice.metric === "fraction" || cell.value === null ? "" : `; ${metricName(choice.metric)} ${shown(cell.value)}`;
  return `${cellName(cell)}: ${counts}${value}`;
}

function shareText(cell) {
  if (!cell.numFinished) return "";
  const rest = cell.numFinished < cell.members.length ? ` of ${cell.members.length}` : "";
  return `${cell.counts.stable || 0}/${cell.numFinished}${rest}`;
}

function cellText(cell) {
  if (cell.state === "not_run") return "";
  const number = choice.metric === "fraction"
    ? shareText(cell)
    : shown(cell.value);
  return [MARKS[cell.state], number].filter(Boolean).join("\n");
}

// --- the map -----------------------------------------------------------------------------------

function drawMap() {
  const cells = mapCells();
  const scale = colourScale(cells);
  const holder = document.getElementById("map");
  holder.replaceChildren(data.is_sampled ? pointMap(cells, scale) : gridMap(cells, scale));
  drawKey(cells, scale);
  document.getElementById("map-title").textContent =
    `${metricName(choice.metric)}${scale.isClipped ? " (colour clipped)" : ""}`;
}

function gridMap(cells, scale) {
  const axisX = data.axes[choice.x];
  const axisY = choice.y < 0 ? { name: "", labels: [""] } : data.axes[choice.y];
  const isSmall = axisX.labels.length * axisY.labels.length > ROOM_FOR_TEXT;
  const table = element("table", { class: isSmall ? "map small" : "map", "aria-label": "stability map" });
  const isStable = (column, row) => {
    const cell = cells.get(`${column},${row}`);
    return cell && isKnown(cell) ? cell.state === "stable" : null;
  };
  const differ = (a, b) => a !== null && b !== null && a !== b;
  for (let row = axisY.labels.length - 1; row >= 0; row--) {
    const line = element("tr", {}, element("th", { scope: "row" }, axisY.labels[row]));
    axisX.labels.forEach((_, column) => {
      const cell = cells.get(`${column},${row}`);
      const place = element("td");
      if (differ(isStable(column, row), isStable(column + 1, row))) place.classList.add("edge-right");
      if (differ(isStable(column, row), isStable(column, row + 1))) place.classList.add("edge-up");
      if (cell) place.append(cellButton(cell, scale, isSmall));
      line.append(place);
    });
    table.append(line);
  }
  const every = Math.max(1, Math.ceil(axisX.labels.length / (isSmall ? 16 : 40)));
  const heads = axisX.labels.map((label, i) => element("th", { scope: "col" }, i % every ? "" : label));
  table.append(element("tr", {}, element("td"), ...heads));
  table.append(element("tr", {}, element("td"), element("th", { colspan: axisX.labels.length }, axisX.name)));
  const caption = axisY.name ? `${axisY.name} upwards, ${axisX.name} to the right` : `${axisX.name} to the right`;
  table.prepend(element("caption", {}, caption));
  table.addEventListener("keydown", moveFocus);
  const first = table.querySelector("button");
  if (first) first.tabIndex = 0;
  return table;
}

function cellButton(cell, scale, isSmall) {
  const button = element("button", { type: "button", "aria-label": cellWords(cell), title: cellWords(cell), tabindex: -1 });
  button.setAttribute("aria-pressed", String(isSelected(cell)));
  const colours = paint(cell, scale);
  if (colours) Object.assign(button.style, { background: colours.background, color: colours.ink });
  else button.classList.add("not_run");
  if (cell.state === "unknown") button.classList.add("unknown");
  button.textContent = isSmall ? MARKS[cell.state] : cellText(cell);
  button.addEventListener("click", () => select(cell, button));
  return button;
}

function isSelected(cell) {
  return selected !== null && selected.join() === cell.members.join();
}

function select(cell, button) {
  selected = cell.members;
  for (const other of document.querySelectorAll("#map [aria-pressed]")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", "true");
  drawCell(cell);
}

// Arrow keys walk over the cells; Tab leaves the map.
function moveFocus(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const place = event.target.closest("td");
  const rows = [...event.currentTarget.rows];
  let [column, row] = [place.cellIndex, rows.indexOf(place.parentNode)];
  do {
    [column, row] = [column + step[0], row + step[1]];
    const next = rows[row]?.cells[column]?.querySelector("button");
    if (next) {
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      return;
    }
  } while (rows[row]?.cells[column]);
}

function pointMap(cells, scale) {
  const [width, height, left, bottom, top, right] = [760, 440, 70, 45, 15, 15];
  const axisX = data.axes[choice.x];
  const axisY = choice.y < 0 ? null : data.axes[choice.y];
  const along = (axis, from, to) => {
    const places = axis.positions.concat(axis.ticks.map((tick) => tick[0]));
    const [low, high] = [Math.min(...places), Math.max(...places)];
    return (place) => from + ((to - from) * (high > low ? (place - low) / (high - low) : 0.5));
  };
  const toX = along(axisX, left + 12, width - right - 12);
  const toY = axisY ? along(axisY, height - bottom - 12, top + 12) : () => height / 2;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "points", role: "group", "aria-label": "stability map" });
  for (const [place, label] of axisX.ticks) {
    drawing.append(svg("line", { class: "grid", x1: toX(place), x2: toX(place), y1: top, y2: height - bottom }));
    drawing.append(svg("text", { x: toX(place), y: height - bottom + 16, "text-anchor": "middle" }, label));
  }
  drawing.append(svg("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, axisX.name));
  for (const [place, label] of axisY ? axisY.ticks : []) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: toY(place), y2: toY(place) }));
    drawing.append(svg("text", { x: left - 6, y: toY(place) + 4, "text-anchor": "end" }, label));
  }
  if (axisY) drawing.append(svg("text", { x: 4, y: top }, axisY.name));
  for (const [key, cell] of cells) {
    const [column, row] = key.split(",").map(Number);
    const [x, y] = [toX(axisX.positions[column]), axisY ? toY(axisY.positions[row]) : toY(0)];
    const colours = paint(cell, scale) || { background: "transparent", ink: "currentColor" };
    const point = svg("circle", {
      cx: x, cy: y, r: 9, fill: colours.background, tabindex: 0, role: "button",
      "aria-label": cellWords(cell), "aria-pressed": String(isSelected(cell)),
    }, svg("title", {}, cellWords(cell)));
    point.addEventListener("click", () => select(cell, point));
    point.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(cell, point); }
    });
    drawing.append(point);
    const mark = svg("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true" }, MARKS[cell.state]);
    mark.style.fill = colours.ink;
    drawing.append(mark);
  }
  return drawing;
}

function drawKey(cells, scale) {
  const states = new Set([...cells.values()].map((cell) => cell.state));
  const meanings = {
    stable: "no mark: all seeds stable", spiked: "spiked: left its trend and recovered",
    diverged: "diverged: never came back, or not finite", stalled: "stalled: never learned",
    errored: "errored: a fault, not a result", unknown: "unknown: some seeds have no result", not_run: "not run",
  };
  const items = Object.keys(meanings).filter((state) => states.has(state)).map((state) =>
    element("li", {}, element("span", { class: `swatch ${state}` }, MARKS[state]), ` ${meanings[state]}`));
  const bar = element("span", { class: "swatch" });
  bar.style.cssText = `width: 7em; background: linear-gradient(90deg, ${scale.colours.join(",")})`;
  items.push(element("li", {}, `${shown(scale.low)} `, bar, ` ${shown(scale.high)}`));
  if (!data.is_sampled) items.push(element("li", {}, "thick lines: edge of stability"));
  document.getElementById("key").replaceChildren(...items);
}

// --- a cell ------------------------------------------------------------------------------------

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new kind(bytes.buffer);
}

function drawCell(cell) {
  const holder = document.getElementById("cell");
  const rows = cell.members.map((i, k) => element("tr", {},
    element("td", {}, lineSample(k), ` ${trials.seed[i]}`), element("td", {}, trials.label[i]),
    element("td", {}, shown(trials.onset_step[i])), element("td", {}, shown(trials.num_spikes[i])),
    element("td", {}, shown(trials.final_loss[i])), element("td", {}, trials.reason[i])));
  const heads = ["seed", "outcome", "onset step", "spikes", "final loss", "why"].map((word) => element("th", { scope: "col" }, word));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const charts = element("div", { class: "charts" }, chart(cell, "loss", "loss"), chart(cell, "grad_norm", "gradient norm"));
  holder.replaceChildren(element("h3", {}, cellName(cell)), element("div", { class: "wide" }, table), charts);
}

function strokeOf(k) {
  const dash = SEED_DASHES[Math.floor(k / SEED_COLOURS.length) % SEED_DASHES.length];
  return { stroke: SEED_COLOURS[k % SEED_COLOURS.length], "stroke-dasharray": dash };
}

function lineSample(k) {
  return svg("svg", { width: 24, height: 8, "aria-hidden": "true", style: "display:inline;width:24px" },
    svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, "stroke-width": 2, ...strokeOf(k) }));
}

function chart(cell, name, title) {
  const [width, height, left, bottom, top] = [560, 300, 58, 36, 14];
  const series = cell.members.map((i, k) => ({ i, k })).filter(({ i }) => data.curves[i][name]).map(({ i, k }) => {
    const [steps, values] = data.curves[i][name];
    return { i, k, steps: decoded(steps, Int32Array), values: decoded(values, Float32Array) };
  });
  const figure = element("figure", {}, element("figcaption", {}, title));
  let [low, high, last] = [Infinity, -Infinity, 1];
  for (const { i, values } of series) {
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    last = Math.max(last, data.curves[i].last);
  }
  if (!(low <= high)) {
    figure.append(element("p", {}, series.length ? "no finite value" : "no curve"));
    return figure;
  }
  const isLog = low > 0 && high / low > 20;
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const place = isLog ? Math.log10 : (v) => v;
  const toX = (step) => left + ((width - left - 10) * step) / last;
  const toY = (value) => height - bottom - ((height - bottom - top) * (place(value) - place(low))) / (place(high) - place(low));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chartWords(cell, title, low, high) });
  for (const value of ticksOf(low, high, isLog)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - 10, y1: toY(value), y2: toY(value) }));
    drawing.append(svg("text", { x: left - 5, y: toY(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  for (const step of ticksOf(0, last, false)) {
    drawing.append(svg("text", { x: toX(step), y: height - bottom + 16, "text-anchor": "middle" }, String(step)));
  }
  drawing.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
  for (const { i, k, steps, values } of series) {
    for (const [onset, recovery] of data.episodes[i]) {
      const from = toX(onset);
      const to = toX(recovery ?? data.curves[i].last);
      drawing.append(svg("rect", { class: "episode", x: from, y: top, width: Math.max(2, to - from), height: height - bottom - top },
        svg("title", {}, `seed ${trials.seed[i]}: off its trend from step ${onset} ${recovery === null ? "on" : `to ${recovery}`}`)));
    }
    const path = Array.from(steps, (step, n) => `${n ? "L" : "M"}${toX(step).toFixed(1)} ${toY(values[n]).toFixed(1)}`).join("");
    drawing.append(svg("path", { class: "curve", d: path, ...strokeOf(k) }, svg("title", {}, `seed ${trials.seed[i]}`)));
    const broken = data.curves[i][`${name}_broken`];
    if (broken !== undefined) {
      drawing.append(svg("text", { x: toX(broken), y: top + 10, "text-anchor": "middle" }, "✕", svg("title", {}, `seed ${trials.seed[i]}: not finite at step ${broken}`)));
    }
    const verdict = trials.verdict_step[i];
    if (verdict !== null) {
      drawing.append(svg("line", { class: "verdict", x1: toX(verdict), x2: toX(verdict), y1: top, y2: height - bottom },
        svg("title", {}, `seed ${trials.seed[i]}: found lost at step ${verdict}`)));
    }
  }
  figure.append(drawing);
  return figure;
}

function chartWords(cell, title, low, high) {
  const episodes = cell.members.reduce((sum, i) => sum + data.episodes[i].length, 0);
  return `${title} of ${cell.members.length} seeds over steps, from ${shown(low)} to ${shown(high)}; ${episodes} episodes`;
}

function ticksOf(low, high, isLog) {
  if (isLog) {
    const [from, to] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((to - from + 1) / 6));
    const decades = [];
    for (let power = from; power <= to; power += every) decades.push(10 ** power);
    if (decades.length > 1) return decades;
    return [low, Math.sqrt(low * high), high];
  }
  const raw = (high - low) / 5;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(Number(value.toPrecision(12)));
  return ticks;
}

// --- controls ----------------------------------------------------------------------------------

function selectBox(id, label, options, value, change) {
  const box = element("select", { id });
  for (const [key, text] of options) box.append(element("option", { value: key }, text));
  box.value = String(value);
  box.addEventListener("change", () => { change(box.value); drawControls(); drawMap(); document.getElementById(id)?.focus(); });
  return element("label", { for: id }, label, box);
}

function drawControls() {
  const names = data.axes.map((axis, a) => [a, axis.name]);
  const boxes = [
    selectBox("metric", "show", [["fraction", metricName("fraction")], ...Object.entries(data.metrics)], choice.metric, (v) => { choice.metric = v; }),
    selectBox("axis-x", "to the right", names, choice.x, (v) => {
      if (Number(v) === choice.y) choice.y = choice.x;
      choice.x = Number(v);
    }),
  ];
  if (names.length > 1) {
    boxes.push(selectBox("axis-y", "upwards", names, choice.y, (v) => {
      if (Number(v) === choice.x) choice.x = choice.y;
      choice.y = Number(v);
    }));
  }
  data.axes.forEach((axis, a) => {
    if (a === choice.x || a === choice.y || axis.labels.length < 2) return;
    const options = [...REDUCTIONS.map((how) => [how, `${how} of all`]), ...axis.labels.map((label, i) => [i, label])];
    boxes.push(selectBox(`slice-${a}`, axis.name, options, choice.slices[a], (v) => {
      choice.slices[a] = v;
      // One reduction serves all axes that are not shown: the worst of the medians is nobody's cell.
      if (REDUCTIONS.includes(v)) choice.slices = choice.slices.map((slice) => (REDUCTIONS.includes(slice) ? v : slice));
    }));
  });
  document.getElementById("controls").replaceChildren(...boxes);
}

if (data.axes.length && numTrials) {
  drawControls();
  drawMap();
}
