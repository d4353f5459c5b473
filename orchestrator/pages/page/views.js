// --- other views of the same cells ---------------------------------------------------------------------

const VIEWS = {
  map: ["Map", "the cells at the values of two axes"],
  scatter: ["Scatter", "every trial by its outcome, on the fitted probability that training is stable"],
  lines: ["Lines", "the metric over the axis to the right, a line for each value of the axis upwards"],
  parallel: ["Parallel", "every trial as a line through its values to its loss, diverged ones too"],
  edge: ["Edge", "where the edge lies, against another axis"],
  importance: ["Importance", "which axis moves stability, and which the loss"],
};

// A view that comes with the answers can be chosen once they are there.
function canView(name) {
  if (name === "edge") return document.querySelector("#answers [data-edge]") !== null;
  if (name === "importance") return document.querySelector("#answers .shares") !== null;
  if (name === "lines") return data.panels.length > 1;
  return true;
}

function drawViews() {
  const buttons = Object.entries(VIEWS).filter(([name]) => canView(name)).map(([name, [title, words]]) => {
    const button = element("button", { type: "button", id: `view-${name}`, title: words, "aria-pressed": String(choice.view === name) }, title);
    button.addEventListener("click", () => { choice.view = name; keepView(); drawControls(); drawViews(); drawMap(); document.getElementById(button.id)?.focus(); });
    return button;
  });
  document.getElementById("views").replaceChildren(...buttons);
}

let nearest = null; // of a drawn view: from a place in it to the number of a cell, or null

// Draws the chosen view, which is not the map.
function drawView() {
  const makers = { scatter: scatterView, lines: linesView, parallel: parallelView, edge: edgeView, importance: importanceView };
  const [title, drawing, key, near] = (canView(choice.view) ? makers[choice.view] : scatterView)();
  nearest = near ?? null;
  document.getElementById("map-title").textContent = title;
  replaceDrawing(drawing);
  document.getElementById("key").replaceChildren(...key);
}

const widthOfViews = () => Math.round(Math.min(Math.max(document.getElementById("map").clientWidth, 300), 1100));
const heightOfViews = (width) => Math.round(Math.min(Math.max(width * 0.62, 260), 520));

// The numbers of the trials of the cells that the slices leave.
function seenTrials() {
  const others = data.axes.map((_, a) => a).filter((a) => a !== choice.x && a !== choice.y && !reductions.includes(choice.slices[a]));
  return cells.at.flatMap((at, c) => (others.every((a) => at[a] === Number(choice.slices[a])) ? cells.members[c].map((i) => ({ c, i })) : []));
}

// From a value to a place between two; the ends are those of ``places``.
function along(places, from, to) {
  const [low, high] = endsOf(places);
  return (place) => from + ((to - from) * (high > low ? (place - low) / (high - low) : 0.5));
}

// A drawing with the chosen axes: its size, and the place of positions on both.
function plane(width, height, label) {
  const [left, bottom, top, right] = [70, 45, 22, 15];
  const axisX = data.axes[choice.x];
  const axisY = choice.y < 0 ? null : data.axes[choice.y];
  const places = (axis) => axis.positions.concat(axis.ticks.map((tick) => tick[0]));
  const toX = along(places(axisX), left + 14, width - right - 14);
  const toY = axisY ? along(places(axisY), height - bottom - 14, top + 14) : () => (top + height - bottom) / 2;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "points", role: "group", "aria-label": label });
  const behind = svg("g");
  drawing.append(behind);
  ticksWithRoom(axisX.ticks, toX, 46).forEach(([place, text]) => drawing.append(
    svg("line", { class: "grid", x1: toX(place), x2: toX(place), y1: top, y2: height - bottom }),
    svg("text", { x: toX(place), y: height - bottom + 16, "text-anchor": "middle" }, text)));
  drawing.append(svg("text", { class: "axis", x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, axisX.name));
  ticksWithRoom(axisY ? axisY.ticks : [], toY, 16).forEach(([place, text]) => drawing.append(
    svg("line", { class: "grid", x1: left, x2: width - right, y1: toY(place), y2: toY(place) }),
    svg("text", { x: left - 6, y: toY(place) + 4, "text-anchor": "end" }, text)));
  if (axisY) drawing.append(svg("text", { class: "axis", x: 4, y: 12 }, axisY.name));
  return { drawing, behind, toX, toY, axisX, axisY };
}

// The ticks that do not cover each other.
function ticksWithRoom(ticks, toPlace, room) {
  let before = null;
  return ticks.filter(([place]) => {
    if (before !== null && Math.abs(toPlace(place) - before) < room) return false;
    before = toPlace(place);
    return true;
  });
}

const outcomeKey = (found) => found.map((outcome) => element("li", {}, element("span", { class: `dot part-${outcome}` }), ` ${outcome}`));
const OUTCOMES_FROM_BELOW = ["waiting", "running", "planned", "errored", "pruned", "stable", "degraded", "stalled", "spiked", "collapsed", "diverged"];

// What the trials ended as, in the order of drawing: what is not stable lies on top.
function byOutcome(found) {
  const groups = new Map(OUTCOMES_FROM_BELOW.map((outcome) => [outcome, []]));
  for (const each of found) {
    const outcome = trials.outcome[each.i];
    (groups.get(outcome) ?? groups.get("waiting")).push(each);
  }
  return [...groups].filter(([, group]) => group.length);
}

// The place nearest to the pointer, within reach.
function nearestOf(points, reach = 22) {
  return (x, y) => {
    let [best, least] = [null, reach ** 2];
    for (const point of points) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best?.c ?? null;
  };
}

// A ring around each chosen cell's points.
function rings(points) {
  return selection.map((c) => points.filter((point) => point.c === c)).filter((group) => group.length).map((group) => ringAround(group, "chosen"));
}

function ringAround(points, name) {
  const [[left, right], [top, bottom]] = [endsOf(points.map(({ x }) => x)), endsOf(points.map(({ y }) => y))];
  const room = name === "chosen" ? 9 : 13; // what is in focus has its ring outside
  return svg("rect", { class: name, x: left - room, y: top - room, width: right - left + 2 * room, height: bottom - top + 2 * room, rx: room });
}

function scatterView() {
  const width = widthOfViews();
  const found = seenTrials();
  const { drawing, behind, toX, toY, axisX, axisY } = plane(width, heightOfViews(width), "every trial by its outcome");
  const shift = (c, i) => (cells.members[c].indexOf(i) - (cells.members[c].length - 1) / 2) * Math.min(7, 40 / cells.members[c].length);
  const points = found.map(({ c, i }) => ({
    c, i, x: toX(axisX.positions[cells.at[c][choice.x]]) + shift(c, i), y: axisY ? toY(axisY.positions[cells.at[c][choice.y]]) : toY(0),
  }));
  const surface = surfaceParts(toX, toY);
  behind.append(...surface);
  for (const [outcome, group] of byOutcome(points)) {
    const isCross = outcome === "diverged" || outcome === "errored";
    const mark = isCross ? ({ x, y }) => `M${(x - 3.5).toFixed(1)} ${(y - 3.5).toFixed(1)}l7 7m0-7l-7 7`
      : outcome === "spiked" ? ({ x, y }) => `M${x.toFixed(1)} ${(y - 4.5).toFixed(1)}l4.5 8h-9Z` : ({ x, y }) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`;
    drawing.append(svg("path", { class: `trial of-${outcome}${isCross ? " cross" : outcome === "spiked" ? " peak" : ""}`, d: group.map(mark).join("") }));
  }
  drawing.append(...rings(points));
  const key = outcomeKey(byOutcome(points).map(([outcome]) => outcome));
  if (surface.length) key.push(element("li", {}, "behind: fitted probability of stable, with a line at one half"));
  return ["every trial by its outcome", withStops(drawing, stopsOf(points)), key, nearestOf(points)];
}

// The fitted surface over the first two axes, if it came with the answers, and its line at one half.
function surfaceParts(toX, toY) {
  const text = document.querySelector("#answers [data-surface]")?.dataset.surface;
  if (!text) return [];
  const { x, y, xs, ys, stable } = JSON.parse(text);
  const names = [data.axes[choice.x].name, data.axes[choice.y]?.name];
  const isTurned = names[0] === y && names[1] === x;
  if (!isTurned && (names[0] !== x || names[1] !== y)) return [];
  const at = isTurned ? (i, j) => stable[i][j] : (i, j) => stable[j][i];
  const [columns, rows] = isTurned ? [ys, xs] : [xs, ys];
  const ends = (places, to) => places.map((place, n) => [n ? (to(places[n - 1]) + to(place)) / 2 : to(place), n + 1 < places.length ? (to(place) + to(places[n + 1])) / 2 : to(place)]);
  const [across, up] = [ends(columns, toX), ends(rows, toY)];
  const { paint } = look.colours.fraction;
  const parts = across.flatMap(([left, right], i) => up.map(([below, above], j) => svg("rect", {
    x: Math.min(left, right).toFixed(1), width: (Math.abs(right - left) + 0.6).toFixed(1), y: Math.min(above, below).toFixed(1), height: (Math.abs(below - above) + 0.6).toFixed(1),
    fill: paint[Math.min(Math.floor(at(i, j) * paint.length), paint.length - 1)],
  })));
  const line = [];
  for (let i = 0; i + 1 < columns.length; i++) for (let j = 0; j + 1 < rows.length; j++) line.push(...crossing(i, j, at, columns, rows, toX, toY));
  return [svg("g", { class: "surface" }, ...parts), svg("path", { class: "half", d: line.join("") || "M0 0" })];
}

// The piece of the line at one half within four neighbouring places.
function crossing(i, j, at, columns, rows, toX, toY) {
  const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
  const ends = corners.flatMap((from, n) => {
    const to = corners[(n + 1) % 4];
    const [a, b] = [at(...from) - 0.5, at(...to) - 0.5];
    if ((a < 0) === (b < 0)) return [];
    const share = a / (a - b);
    const between = (places, k, toPlace) => toPlace(places[from[k]]) + share * (toPlace(places[to[k]]) - toPlace(places[from[k]]));
    return [`${between(columns, 0, toX).toFixed(1)} ${between(rows, 1, toY).toFixed(1)}`];
  });
  return ends.length === 2 ? [`M${ends[0]}L${ends[1]}`] : ends.length === 4 ? [`M${ends[0]}L${ends[1]}M${ends[2]}L${ends[3]}`] : [];
}

function edgeView() {
  const figure = element("figure", { class: "edge" });
  fillEdge(figure, document.querySelector("#answers [data-edge]").dataset.edge);
  const title = document.querySelector("#answers [data-edge]").closest("section").querySelector("h2").textContent;
  return [title, figure, []];
}

function importanceView() {
  const bars = document.querySelector("#answers .shares").cloneNode(true);
  return ["which axis matters", bars, [element("li", {}, "the length of a bar is an axis's share; the part Choose says how it was computed")]];
}

