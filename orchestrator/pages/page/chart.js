// --- one chart: the curves of some trials ------------------------------------------------------------

// Charts are as wide as their column, one below the other, so that their steps lie above each other. In pixels, so that
// words have one size everywhere.
const [NARROWEST, WIDEST, HEIGHT] = [300, 1100, 250];
const widthOfCharts = () => Math.round(Math.min(Math.max(document.getElementById("cell").clientWidth, NARROWEST), WIDEST));
const [LEFT, TOP, BOTTOM] = [58, 14, HEIGHT - 36]; // of the frame in it

function chart(holder, lines, name, title, number) {
  const WIDTH = widthOfCharts();
  const RIGHT = WIDTH - 10;
  const series = lines.filter(({ i, curve }) => curve[name] && !hidden.has(trials.trial_id[i])).map((line) => {
    const [steps, values] = line.curve[name];
    return { ...line, steps: decoded(steps, Int32Array), values: decoded(values, Float32Array) };
  });
  const figure = element("figure", {}, element("figcaption", {}, title));
  let [low, high, last] = rangeOf(series);
  const [from, to] = zoom.steps ?? [0, last];
  if (!(low <= high)) {
    figure.append(element("p", {}, !series.length ? "no curve" : zoom.steps ? "no finite value in these steps" : "no finite value"));
    return figure;
  }
  const isLog = low > 0 && (scales[name] ?? (high / low > look.log_curves_from ? "log" : "linear")) === "log";
  if (low > 0) figure.firstChild.append(" ", logSwitch(holder, lines, name, isLog));
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const place = isLog ? Math.log10 : (v) => v;
  const toX = (step) => LEFT + ((RIGHT - LEFT) * (step - from)) / (to - from);
  const toY = (value) => BOTTOM - ((BOTTOM - TOP) * (place(Math.min(Math.max(value, low), high)) - place(low))) / (place(high) - place(low));
  const frame = { toX, left: LEFT, right: RIGHT, top: TOP, bottom: BOTTOM, shows: (first, end) => first <= to && end >= from };
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": chartWords(series, title, low, high, zoom.steps) });
  drawing.append(svg("clipPath", { id: `frame-${number}` }, svg("rect", { x: LEFT, y: 0, width: RIGHT - LEFT, height: BOTTOM + 2 })));
  for (const value of ticksOf(low, high, isLog)) {
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: toY(value), y2: toY(value) }));
    drawing.append(svg("text", { x: LEFT - 5, y: toY(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const step of ticksOf(from, to, false).filter(Number.isInteger)) {
    drawing.append(svg("text", { x: toX(step), y: BOTTOM + 16, "text-anchor": "middle" }, String(step)));
  }
  drawing.append(svg("text", { x: (LEFT + RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "step"));
  const drawn = svg("g", { "clip-path": `url(#frame-${number})` });
  for (const line of series) {
    const path = pathOf(line, toX, toY, high);
    drawn.append(...episodeMarks(line, frame));
    drawn.append(svg("path", { class: "curve", d: path, ...strokeOf(line.k) }, svg("title", {}, `seed ${trials.seed[line.i]}`)));
    drawn.append(...brokenMarks(line, name, frame), ...clippedMarks(line, high, frame), ...verdictMarks(line, frame));
  }
  drawing.append(drawn);
  const placeOf = (event) => {
    const box = drawing.getBoundingClientRect();
    return Math.min(Math.max(((event.clientX - box.left) * WIDTH) / box.width, LEFT), RIGHT);
  };
  const stepAt = (event) => Math.round(from + ((placeOf(event) - LEFT) * (to - from)) / (RIGHT - LEFT));
  const readout = element("p", { class: "readout" }, "");
  drawing.addEventListener("pointermove", (event) => { readout.textContent = readoutWords(series, stepAt(event)); });
  drawing.addEventListener("pointerleave", () => { readout.textContent = ""; });
  zoomByPointer(drawing, stepAt, { top: TOP, bottom: BOTTOM, placeOf });
  figure.append(drawing, readout);
  return figure;
}

// A curve that leaves the chart has a gap there, so that it does not read as a plateau.
function pathOf({ steps, values }, toX, toY, high) {
  const isOut = (n) => values[n] > high;
  return Array.from(steps, (step, n) => {
    if (isOut(n) && (n === 0 || isOut(n - 1))) return "";
    return `${n && !isOut(n - 1) ? "L" : "M"}${toX(step).toFixed(1)} ${toY(values[n]).toFixed(1)}`;
  }).join("") || "M0 0";
}

function logSwitch(holder, lines, name, isLog) {
  const box = element("input", { type: "checkbox", id: `log-${name}` });
  box.checked = isLog;
  box.addEventListener("change", () => { scales[name] = box.checked ? "log" : "linear"; drawCells(holder, lines); });
  return element("label", { for: box.id }, box, " log");
}

// The lowest and highest value of the steps that are shown, and the last step of all. Where other trials did not diverge, those that did do not
// stretch the scale beyond what the others and every trial's first value need: they leave it at the top.
function rangeOf(series) {
  let [low, high, last] = [Infinity, -Infinity, 1];
  const isCalm = ({ i }) => trials.outcome[i] !== "diverged";
  const isShown = (step) => zoom.steps === null || (step >= zoom.steps[0] && step <= zoom.steps[1]);
  const hasCalm = series.some((line) => isCalm(line) && line.steps.some(isShown));
  for (const line of series) {
    const setsScale = !hasCalm || isCalm(line);
    line.values.forEach((value, n) => {
      if (zoom.steps !== null ? !isShown(line.steps[n]) || !setsScale : n > 0 && !setsScale) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
    last = Math.max(last, line.curve.last);
  }
  return [low, high, last];
}

// The value of every curve at the drawn point nearest to ``step``.
function readoutWords(series, step) {
  const values = series.filter(({ steps }) => steps.length).map(({ i, steps, values }) => {
    let n = steps.findIndex((each) => each >= step);
    if (n < 0) n = steps.length - 1;
    if (n > 0 && step - steps[n - 1] < steps[n] - step) n -= 1;
    return `seed ${trials.seed[i]}: ${tickText(values[n])}${steps[n] === step ? "" : ` (step ${steps[n]})`}`;
  });
  return `step ${step}; ${values.join(", ")}`;
}

function chartWords(series, title, low, high, steps) {
  const episodes = series.reduce((sum, { i }) => sum + data.episodes[i].length, 0);
  const over = steps === null ? "steps" : `steps ${steps[0]} to ${steps[1]}`;
  return `${title} of ${series.length} seeds over ${over}, from ${tickText(low)} to ${tickText(high)}; ${episodes} episodes`;
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

