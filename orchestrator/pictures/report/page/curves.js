// --- a cell ------------------------------------------------------------------------------------

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new kind(bytes.buffer);
}

const hidden = new Set(); // trials whose curves are switched off
const scales = {}; // curve -> log or linear, where chosen
let asked = 0; // of several answers only the newest is drawn

// The curves of these trials: of the page itself, or of the server that it came from.
async function curvesOf(members) {
  if (data.curves !== null) return members.map((i) => data.curves[i]);
  const response = await fetch(`curves?trials=${members.map((i) => trials.trial_id[i]).join(",")}`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function drawSelection() {
  const place = document.getElementById("cell");
  if (!selection.length) {
    place.replaceChildren(element("p", {}, "Choose a cell to see its seeds' curves; with Shift, several to compare."));
    return;
  }
  const [turn, view] = [asked += 1, data];
  const chosen = selection.flatMap((c) => cells.members[c].map((i) => ({ c, i })));
  let curves;
  try {
    curves = await curvesOf(chosen.map(({ i }) => i));
  } catch (error) {
    if (turn === asked) place.replaceChildren(element("p", {}, `no curves: ${error.message}`));
    return;
  }
  if (turn === asked && view === data) drawCells(place, chosen.map(({ c, i }, k) => ({ c, i, k, curve: curves[k] })));
}

function drawCells(place, lines) {
  const several = selection.length > 1;
  const inFocus = document.activeElement?.id;
  const rows = lines.map((line) => element("tr", {}, ...(several ? [element("td", {}, cellName(line.c))] : []),
    ...data.columns.map(({ name }, column) => {
      const text = String(trials[name][line.i] ?? "");
      return column ? element("td", { class: name }, text) : element("td", {}, lineSwitch(place, lines, line), ` ${text}`);
    })));
  const heads = data.columns.map(({ title, meaning }) => element("th", { scope: "col", title: meaning }, title));
  if (several) heads.unshift(element("th", { scope: "col" }, "cell"));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const drawn = Object.entries(data.curve_titles).filter(([name]) => name in { loss: 1, grad_norm: 1 } || lines.some(({ curve }) => curve[name]));
  const charts = drawn.map(([name, title]) => chart(place, lines, name, title));
  const head = several ? `${selection.length} cells compared` : cellName(selection[0]);
  place.replaceChildren(element("h3", {}, head), element("div", { class: "charts" }, ...charts), element("div", { class: "wide" }, table));
  if (inFocus) document.getElementById(inFocus)?.focus({ preventScroll: true });
}

// Switches the curves of one trial off and on.
function lineSwitch(place, lines, { i, k }) {
  const id = trials.trial_id[i];
  const button = element("button", {
    type: "button", class: "line", id: `line-${id}`, "aria-pressed": String(!hidden.has(id)), "aria-label": `curves of seed ${trials.seed[i]}`,
  }, lineSample(k));
  button.addEventListener("click", () => {
    if (!hidden.delete(id)) hidden.add(id);
    drawCells(place, lines);
  });
  return button;
}

function strokeOf(k) {
  const dash = look.seed_dashes[Math.floor(k / look.seed_colours.length) % look.seed_dashes.length];
  return { stroke: look.seed_colours[k % look.seed_colours.length], "stroke-dasharray": dash };
}

function lineSample(k) {
  return svg("svg", { width: 24, height: 8, "aria-hidden": "true", style: "display:inline;width:24px" },
    svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, "stroke-width": 2, ...strokeOf(k) }));
}

function chart(holder, lines, name, title) {
  const [width, height, left, bottom, top] = [560, 300, 58, 36, 14];
  const series = lines.filter(({ i, curve }) => curve[name] && !hidden.has(trials.trial_id[i])).map((line) => {
    const [steps, values] = line.curve[name];
    return { ...line, steps: decoded(steps, Int32Array), values: decoded(values, Float32Array) };
  });
  const figure = element("figure", {}, element("figcaption", {}, title));
  let [low, high, last] = rangeOf(series);
  if (!(low <= high)) {
    figure.append(element("p", {}, series.length ? "no finite value" : "no curve"));
    return figure;
  }
  const isLog = low > 0 && (scales[name] ?? (high / low > look.log_curves_from ? "log" : "linear")) === "log";
  if (low > 0) {
    const box = element("input", { type: "checkbox", id: `log-${name}` });
    box.checked = isLog;
    box.addEventListener("change", () => { scales[name] = box.checked ? "log" : "linear"; drawCells(holder, lines); });
    figure.firstChild.append(" ", element("label", { for: box.id }, box, " log"));
  }
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const place = isLog ? Math.log10 : (v) => v;
  const toX = (step) => left + ((width - left - 10) * step) / last;
  const toY = (value) => height - bottom - ((height - bottom - top) * (place(Math.min(Math.max(value, low), high)) - place(low))) / (place(high) - place(low));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chartWords(series, title, low, high) });
  for (const value of ticksOf(low, high, isLog)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - 10, y1: toY(value), y2: toY(value) }));
    drawing.append(svg("text", { x: left - 5, y: toY(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const step of ticksOf(0, last, false)) {
    drawing.append(svg("text", { x: toX(step), y: height - bottom + 16, "text-anchor": "middle" }, String(step)));
  }
  drawing.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
  for (const { i, k, curve, steps, values } of series) {
    for (const [onset, recovery] of data.episodes[i]) {
      const from = toX(onset);
      const to = toX(recovery ?? curve.last);
      drawing.append(svg("rect", { class: "episode", x: from, y: top, width: Math.max(2, to - from), height: height - bottom - top },
        svg("title", {}, `seed ${trials.seed[i]}: off its trend from step ${onset} ${recovery === null ? "on" : `to ${recovery}`}`)));
    }
    const path = Array.from(steps, (step, n) => `${n ? "L" : "M"}${toX(step).toFixed(1)} ${toY(values[n]).toFixed(1)}`).join("");
    drawing.append(svg("path", { class: "curve", d: path, ...strokeOf(k) }, svg("title", {}, `seed ${trials.seed[i]}`)));
    const broken = curve[`${name}_broken`];
    if (broken !== undefined) {
      drawing.append(svg("text", { x: toX(broken), y: top + 10, "text-anchor": "middle" }, "✕", svg("title", {}, `seed ${trials.seed[i]}: not finite at step ${broken}`)));
    }
    const verdict = trials.verdict_step[i];
    if (verdict !== null) {
      drawing.append(svg("line", { class: "verdict", x1: toX(verdict), x2: toX(verdict), y1: top, y2: height - bottom },
        svg("title", {}, `seed ${trials.seed[i]}: found lost at step ${verdict}`)));
    }
  }
  const readout = element("p", { class: "readout" }, "");
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const step = Math.round((((event.clientX - box.left) * width) / box.width - left) * last / (width - left - 10));
    readout.textContent = step < 0 || step > last ? "" : readoutWords(series, step);
  });
  drawing.addEventListener("pointerleave", () => { readout.textContent = ""; });
  figure.append(drawing, readout);
  return figure;
}

// The lowest and highest value drawn, and the last step. Where other trials did not diverge, those that did do not
// stretch the scale beyond what the others and every trial's first value need: they leave it at the top.
function rangeOf(series) {
  let [low, high, last] = [Infinity, -Infinity, 1];
  const isCalm = ({ i }) => trials.outcome[i] !== "diverged";
  const hasCalm = series.some(isCalm);
  for (const line of series) {
    const shown = !hasCalm || isCalm(line) ? line.values : line.values.slice(0, 1);
    for (const value of shown) { low = Math.min(low, value); high = Math.max(high, value); }
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

function chartWords(series, title, low, high) {
  const episodes = series.reduce((sum, { i }) => sum + data.episodes[i].length, 0);
  return `${title} of ${series.length} seeds over steps, from ${tickText(low)} to ${tickText(high)}; ${episodes} episodes`;
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

