// --- the metric over an axis, and every trial through its values ----------------------------------------

// The panel whose values are drawn: fractions of stable seeds say nothing of a loss.
function metricPanel() {
  return panel().range === null ? panel() : data.panels.find(({ range }) => range === null);
}

const MOST_ROWS_NAMED = 24;

// The colour of a row among several: as the seeds have, or of a scale where there are more rows than colours.
function colourOfRow(n, num) {
  if (num <= look.seed_colours.length) return look.seed_colours[n];
  const { paint } = look.colours.value;
  return paint[Math.round((0.9 * n * (paint.length - 1)) / Math.max(1, num - 1) + 0.05 * paint.length)];
}

function linesView() {
  const width = widthOfViews();
  const height = heightOfViews(width);
  const { title, values } = metricPanel();
  const [left, right, top, bottom] = [70, width - 15, 26, height - 45];
  const axisX = data.axes[choice.x];
  const axisY = choice.y < 0 ? null : data.axes[choice.y];
  const rows = new Map();
  for (const [key, c] of mapCells()) {
    const row = Number(key.split(",")[1]);
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push(c);
  }
  const order = [...rows.keys()].sort((a, b) => a - b);
  const calm = [...rows.values()].flat().filter((c) => values[c] !== null && lookOf(c).sets_colours).map((c) => values[c]);
  const { low, high, isLog, toY } = heightsOf(calm, bottom, top + 16);
  const toX = along(axisX.positions.concat(axisX.ticks.map((tick) => tick[0])), left + 14, right - 14);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "points", role: "group", "aria-label": `${title} over ${axisX.name}` });
  for (const value of ticksOf(low, high, isLog, 5)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: right, y1: toY(value), y2: toY(value) }), svg("text", { x: left - 6, y: toY(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const [at, text] of ticksWithRoom(axisX.ticks, toX, 46)) drawing.append(svg("text", { x: toX(at), y: bottom + 16, "text-anchor": "middle" }, text));
  drawing.append(svg("text", { class: "axis", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }, axisX.name), svg("text", { class: "axis", x: 4, y: 12 }, title));
  const points = [];
  order.forEach((row, n) => {
    const colour = colourOfRow(n, order.length);
    const inRow = rows.get(row).map((c) => ({ c, x: toX(axisX.positions[cells.at[c][choice.x]]), isOut: values[c] === null || values[c] > high }))
      .filter(({ c }) => lookOf(c).is_known).sort((a, b) => a.x - b.x)
      .map((point) => ({ ...point, y: point.isOut ? top : toY(values[point.c]) }));
    let wasOut = true;
    const path = inRow.map(({ x, y, isOut }) => { const step = `${isOut || wasOut ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`; wasOut = isOut; return step; }).join("");
    drawing.append(svg("path", { class: "curve", d: path || "M0 0", stroke: colour, "stroke-dasharray": order.length <= look.seed_colours.length ? "" : look.seed_dashes[n % 2] }));
    const crosses = inRow.filter(({ c, isOut }) => isOut || lookOf(c).is_over_edge);
    const dots = inRow.filter((point) => !crosses.includes(point));
    drawing.append(svg("path", { class: "trial", d: dots.map(({ x, y }) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("") || "M-9 0", stroke: colour }),
      svg("path", { class: "trial cross", d: crosses.map(({ x, y }) => `M${(x - 3.5).toFixed(1)} ${(y - 3.5).toFixed(1)}l7 7m0-7l-7 7`).join("") || "M-9 0", stroke: colour }));
    points.push(...inRow);
  });
  drawing.append(...rings(points));
  const key = axisY ? order.slice(0, MOST_ROWS_NAMED).map((row, n) => {
    const swatch = element("span", { class: "dot" });
    swatch.style.background = colourOfRow(n, order.length);
    return element("li", {}, swatch, `${axisY.name} ${axisY.heads[row]}`);
  }) : [];
  key.push(element("li", {}, "✕ over the edge; at the top: beyond the losses of stable cells, or without one"));
  return [`${title} over ${axisX.name}${axisY ? `, by ${axisY.name}` : ""}`, withStops(drawing, stopsOf(points)), key, nearestOf(points)];
}

const ROOM_FOR_DIVERGED = 34;

function parallelView() {
  const width = widthOfViews();
  const height = heightOfViews(width);
  const [left, right, top, bottom] = [58, width - 60, 34, height - 20];
  const axes = data.axes.filter(({ labels }) => labels.length > 1);
  const found = seenTrials();
  const losses = found.map(({ i }) => (trials.final_loss[i] === null ? null : Number(trials.final_loss[i])));
  const calm = losses.filter((loss, n) => loss !== null && Number.isFinite(loss) && trials.outcome[found[n].i] !== "diverged");
  const { low, high, isLog, toY: toLoss } = heightsOf(calm, bottom, top + ROOM_FOR_DIVERGED);
  const toColumn = (n) => left + ((right - left) * n) / axes.length;
  const scales = axes.map((axis) => along(axis.positions, bottom, top));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "points", role: "group", "aria-label": "every trial through its values to its final loss" });
  const numbers = axes.map((axis) => data.axes.indexOf(axis));
  const lines = found.map(({ c, i }, n) => {
    const spread = (cells.members[c].indexOf(i) - (cells.members[c].length - 1) / 2) * 1.5;
    const ys = numbers.map((a, k) => scales[k](axes[k].positions[cells.at[c][a]]) + spread);
    const isLost = losses[n] === null || !Number.isFinite(losses[n]) || trials.outcome[i] === "diverged";
    return { c, i, ys: [...ys, isLost ? top : toLoss(losses[n])] };
  }).filter(({ i }) => trials.has_result[i]);
  const pathOfTrial = ({ ys }) => ys.map((y, n) => `${n ? "L" : "M"}${toColumn(n).toFixed(1)} ${y.toFixed(1)}`).join("");
  const opacity = Math.min(0.8, 3 / Math.sqrt(Math.max(1, lines.length)) + 0.05);
  for (const [outcome, group] of byOutcome(lines)) {
    drawing.append(svg("path", { class: `through of-${outcome}`, d: group.map(pathOfTrial).join(""), "stroke-opacity": opacity.toFixed(2) }));
  }
  for (const line of lines.filter(({ c }) => selection.includes(c))) drawing.append(svg("path", { class: "through chosen", d: pathOfTrial(line) }));
  axes.forEach((axis, n) => {
    const x = toColumn(n);
    drawing.append(svg("line", { class: "column", x1: x, x2: x, y1: top, y2: bottom }), svg("text", { class: "axis", x, y: 14, "text-anchor": n ? "middle" : "start" }, axis.name));
    for (const [at, text] of ticksWithRoom(axis.ticks, scales[n], 16)) drawing.append(svg("text", { class: "halo", x: x - 5, y: scales[n](at) + 4, "text-anchor": "end" }, text));
  });
  drawing.append(svg("line", { class: "column", x1: right, x2: right, y1: top, y2: bottom }), svg("text", { class: "axis", x: width - 2, y: 14, "text-anchor": "end" }, "final loss"),
    svg("text", { x: right + 6, y: top + 4 }, "diverged"));
  for (const value of ticksOf(low, high, isLog, 5)) drawing.append(svg("text", { x: right + 6, y: toLoss(value) + 4 }, tickText(value)));
  // The line nearest to the pointer, between the two axes beside it.
  const near = (x, y) => {
    const n = Math.min(Math.max(Math.floor(((x - left) * axes.length) / (right - left)), 0), axes.length - 1);
    const share = Math.min(Math.max((x - toColumn(n)) / (toColumn(n + 1) - toColumn(n)), 0), 1);
    let [best, least] = [null, 12];
    for (const { c, ys } of lines) {
      const distance = Math.abs(ys[n] + share * (ys[n + 1] - ys[n]) - y);
      if (distance < least) [best, least] = [c, distance];
    }
    return best;
  };
  // Up and down by the loss, to the sides from cell to cell as the sweep has them.
  const places = stopsOf(lines.map(({ c, ys }) => ({ c, x: c, y: ys[ys.length - 1] })), () => ({}));
  for (const stop of places) stop.draw = () => svg("path", { class: "ring", d: lines.filter(({ c }) => c === stop.c).map(pathOfTrial).join("") });
  return ["every trial through its values to its final loss", withStops(drawing, places), outcomeKey(byOutcome(lines).map(([outcome]) => outcome)), near];
}

