// --- one chart: the curves of some trials ------------------------------------------------------------

// SVG of our own: uPlot 1.6.32 was measured beside it. It is 53 kB of script, where charts, marks, smoothing and zoom are 23 kB, and would replace
// about 6 of them. Three charts of three seeds with the 600 points that a page draws take 14 ms of the main thread with it, unsmoothed, and 12 ms
// here with smoothing; of ten seeds 15 and 33 ms. Only with 5,000 points that are not thinned it is far ahead, 13 to 59 ms. It draws on a canvas:
// files as SVG, titles of marks, and colours by style sheet would need all of this once more.

// Charts are as wide as their column, one below the other, so that their steps lie above each other. In pixels, so that
// words have one size everywhere.
const [NARROWEST, WIDEST] = [300, 1400];
const widthOfCharts = () => Math.round(Math.min(Math.max(document.getElementById("cell").clientWidth, NARROWEST), WIDEST));
const HEIGHTS = { loss: 236, lr: 84 }; // of others: 150
const [LEFT, TOP, BELOW, BELOW_LAST] = [58, 14, 10, 36]; // of the frame in its drawing

// All charts of ``lines``, with one axis of steps and one cursor.
function charts(lines, names) {
  const shown = lines.filter(({ i }) => !hidden.has(trials.trial_id[i]));
  const last = Math.max(1, ...shown.map(({ curve }) => curve.last ?? 0));
  const [from, to] = zoom.steps ?? [0, last];
  const cursor = { places: [], move: (step) => cursor.places.forEach((each) => each(step)) };
  const width = widthOfCharts();
  const figures = names.map(([name, title], n) => chart(shown, name, title, { from, to, last, width, cursor, number: n, isLast: n === names.length - 1 }));
  return [...figures, curveKey(shown, from, to)];
}

function chart(lines, name, title, { from, to, last, width, cursor, number, isLast }) {
  const figure = element("figure", {}, element("figcaption", {}, element("strong", {}, title)));
  const series = lines.filter(({ curve }) => curve[name]).map((line) => ({ ...line, ...pointsOf(line.curve, name) }));
  const range = rangeOf(series);
  if (!(range[0] <= range[1])) {
    figure.append(element("p", {}, !series.length ? "no curve" : zoom.steps ? "no finite value in these steps" : "no finite value"));
    return figure;
  }
  const height = HEIGHTS[name] ?? 150;
  const [bottom, right] = [height - (isLast ? BELOW_LAST : BELOW), width - 10];
  const { low, high, canLog, isLog, toY } = heightsOf(range, bottom, TOP, scales[name]);
  if (canLog) figure.firstChild.append(" ", logSwitch(name, isLog));
  const toX = (step) => LEFT + ((right - LEFT) * (step - from)) / (to - from);
  const frame = { toX, toY, left: LEFT, right, top: TOP, bottom, high, from, to, shows: (first, end) => first <= to && end >= from };
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": chartWords(series, title, low, high, zoom.steps) });
  drawing.append(svg("clipPath", { id: `frame-${number}` }, svg("rect", { x: LEFT, y: 0, width: right - LEFT, height: bottom + 2 })));
  for (const value of ticksOf(low, high, isLog, height < 100 ? 2 : 5)) {
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: right, y1: toY(value), y2: toY(value) }));
    drawing.append(svg("text", { x: LEFT - 5, y: toY(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const step of ticksOf(from, to, false, 5).filter(Number.isInteger)) {
    drawing.append(svg("line", { class: "grid", x1: toX(step), x2: toX(step), y1: bottom, y2: bottom + 4 }));
    if (isLast) drawing.append(svg("text", { x: toX(step), y: bottom + 16, "text-anchor": "middle" }, String(step)));
  }
  if (isLast) drawing.append(svg("text", { x: (LEFT + right) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
  const drawn = svg("g", { "clip-path": `url(#frame-${number})` });
  const span = smoothSteps(series, last);
  const numOff = series.filter(({ i }) => data.episodes[i].length).length;
  for (const line of series) {
    line.seen = span > 0 && name !== "lr" ? smoothed(line, span, isLog) : line.values;
    drawn.append(...episodeMarks(line, frame, name === "loss", numOff));
  }
  drawn.append(...(curveLook.seeds === "band" ? bandsOf(series, frame) : series.flatMap((line) => linesOf(line, frame))));
  for (const line of series) drawn.append(...brokenMarks(line, name, frame), ...clippedMarks(line, frame));
  drawn.append(...verdictMarks(series, frame, name === "loss"));
  drawing.append(drawn);
  const readout = element("span", { class: "readout" }, "");
  figure.firstChild.append(" ", readout);
  addCursor(drawing, drawn, series, frame, cursor, readout, width);
  figure.append(drawing);
  return figure;
}

// The smoothed line over the faint one of all points; without smoothing the line of all points.
function linesOf(line, frame) {
  const title = svg("title", {}, lineWords(line));
  const path = svg("path", { class: "curve", d: pathOf(line.steps, line.seen, frame), ...strokeOf(line.k) }, title);
  if (line.seen === line.values) return [path];
  return [svg("path", { class: "faint", d: pathOf(line.steps, line.values, frame), ...strokeOf(line.k), "stroke-dasharray": "" }), path];
}

const lineWords = ({ c, i }) => `${selection.length > 1 ? `${cellName(c)} ` : ""}seed ${trials.seed[i]}`;

// A curve that leaves the chart has a gap there, so that it does not read as a plateau.
function pathOf(steps, values, { toX, toY, high }) {
  const parts = [];
  let wasOut = true;
  for (let n = 0; n < steps.length; n++) {
    const isOut = values[n] > high;
    if (!(isOut && wasOut)) parts.push(`${wasOut ? "M" : "L"}${toX(steps[n]).toFixed(1)} ${toY(values[n]).toFixed(1)}`);
    wasOut = isOut;
  }
  return parts.join("") || "M0 0";
}

// One line through all charts follows the pointer, and each chart says its values there.
function addCursor(drawing, drawn, series, frame, cursor, readout, width) {
  const line = svg("line", { class: "cursor", y1: frame.top, y2: frame.bottom, visibility: "hidden" });
  drawn.append(line);
  cursor.places.push((step) => {
    const isShown = step !== null && frame.shows(step, step);
    line.setAttribute("visibility", isShown ? "visible" : "hidden");
    if (isShown) for (const end of ["x1", "x2"]) line.setAttribute(end, frame.toX(step));
    readout.textContent = isShown ? readoutWords(series, step) : "";
  });
  const placeOf = (event) => {
    const box = drawing.getBoundingClientRect();
    return Math.min(Math.max(((event.clientX - box.left) * width) / box.width, frame.left), frame.right);
  };
  const stepAt = (event) => Math.round(frame.from + ((placeOf(event) - frame.left) * (frame.to - frame.from)) / (frame.right - frame.left));
  drawing.addEventListener("pointermove", (event) => cursor.move(stepAt(event)));
  drawing.addEventListener("pointerleave", () => cursor.move(null));
  zoomByPointer(drawing, stepAt, { top: frame.top, bottom: frame.bottom, placeOf });
}

function logSwitch(name, isLog) {
  const box = element("input", { type: "checkbox", id: `log-${name}` });
  box.checked = isLog;
  box.addEventListener("change", () => { scales[name] = box.checked ? "log" : "linear"; keepView(); drawAgain(); });
  return element("label", { for: box.id }, box, " log");
}

// The lowest and highest value of the steps that are shown. Where other trials did not diverge, those that did do not
// stretch the scale beyond what the others and every trial's first value need: they leave it at the top.
function rangeOf(series) {
  let [low, high] = [Infinity, -Infinity];
  const isCalm = ({ i }) => trials.outcome[i] !== "diverged";
  const [first, end] = zoom.steps ?? [-Infinity, Infinity];
  const isShown = (step) => step >= first && step <= end;
  const hasCalm = series.some((line) => isCalm(line) && line.steps.some(isShown));
  for (const line of series) {
    const setsScale = !hasCalm || isCalm(line);
    line.values.forEach((value, n) => {
      if (zoom.steps !== null ? !isShown(line.steps[n]) || !setsScale : n > 0 && !setsScale) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
  }
  return [low, high];
}

const MOST_READ = 8; // seeds whose values are said

// The value of every curve at the drawn point nearest to ``step``.
function readoutWords(series, step) {
  const values = series.filter(({ steps }) => steps.length).slice(0, MOST_READ).map((line) => {
    const n = nearestPoint(line.steps, step);
    const [at, value] = [line.steps[n], line.values[n]];
    return `${lineWords(line)}: ${tickText(value)}${at === step ? "" : ` (step ${at})`}`;
  });
  return `step ${step}; ${values.join(", ")}${series.length > MOST_READ ? ", …" : ""}`;
}

function chartWords(series, title, low, high, steps) {
  const episodes = series.reduce((sum, { i }) => sum + data.episodes[i].length, 0);
  const over = steps === null ? "steps" : `steps ${steps[0]} to ${steps[1]}`;
  return `${title} of ${series.length} seeds over ${over}, from ${tickText(low)} to ${tickText(high)}; ${episodes} episodes`;
}

// Round values between two, about ``num`` of them; powers of ten on a logarithmic axis.
function ticksOf(low, high, isLog, num) {
  if (isLog) {
    const [from, to] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((to - from + 1) / (num + 1)));
    const decades = [];
    for (let power = from; power <= to; power += every) decades.push(10 ** power);
    if (decades.length > 1) return decades;
    return [low, Math.sqrt(low * high), high];
  }
  const raw = (high - low) / num;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(Number(value.toPrecision(12)));
  return ticks;
}
