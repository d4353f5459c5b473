// --- a cell ------------------------------------------------------------------------------------

const hidden = new Set(); // trials whose curves are switched off
const scales = {}; // curve -> log or linear, where chosen
let asked = 0; // of several answers only the newest is drawn
let drawnLines = []; // what the charts show
const MOST_CELLS = 12; // whose curves are drawn

// The curves of these trials: of the page itself, or of the server that it came from, which sends all points of a part.
async function curvesOf(members) {
  if (!isLive()) {
    const { curves } = await later();
    return members.map((i) => curves[i]);
  }
  const words = { trials: members.map((i) => trials.trial_id[i]).join(",") };
  if (reading.name) words.reading = reading.name;
  if (zoom.steps !== null) words.steps = zoom.steps.join(":");
  return ask("curves", words);
}

async function drawSelection() {
  const place = document.getElementById("cell");
  const [turn, view] = [asked += 1, data];
  if (!selection.length) {
    drawnLines = []; // else a resized window would draw them again
    place.replaceChildren(element("p", { class: "empty" }, "Choose a cell to see its seeds' curves; with Shift, several to compare, or drag over a region."));
    drawDiagnoses([]);
    return;
  }
  const chosen = selection.slice(0, MOST_CELLS).flatMap((c) => cells.members[c].map((i) => ({ c, i })));
  let curves;
  try {
    curves = await curvesOf(chosen.map(({ i }) => i));
  } catch (error) {
    if (turn === asked) place.replaceChildren(element("p", {}, `no curves: ${error.message}`));
    return;
  }
  if (turn !== asked || view !== data) return;
  // Several cells have a colour each, the seeds of one cell too.
  const order = new Map(selection.map((c, n) => [c, n]));
  drawnLines = chosen.map(({ c, i }, k) => ({ c, i, k: selection.length > 1 ? order.get(c) : k, curve: curves[k] }));
  drawCells(place, drawnLines);
  drawDiagnoses(chosen.map(({ i }) => i));
}

// The same curves after the reader has changed how they are drawn.
function drawAgain() {
  drawCells(document.getElementById("cell"), drawnLines);
  sayCauses();
}

// Names and titles of the charts of ``lines``, from the top to the bottom.
function chartNames(lines) {
  const drawn = Object.entries(data.curve_titles).filter(([name]) => name === "loss" || name === "grad_norm" || lines.some(({ curve }) => curve[name]));
  if (lines.some(({ curve }) => curve[reading.name])) drawn.push([reading.name, reading.name]);
  return drawn;
}

function drawCells(place, lines) {
  const several = selection.length > 1;
  const inFocus = document.activeElement?.id;
  const last = Math.max(1, ...lines.map(({ curve }) => curve.last ?? 0));
  const controls = element("div", { class: "controls" }, ...lookControls(lines, last), zoomControls(last), ...readingControls(lines));
  const head = several ? `${selection.length} cells compared` : cellName(selection[0]);
  const below = several ? [regionWords()] : [commandLine(selection[0])];
  place.replaceChildren(element("h3", {}, head), ...below, controls,
    element("div", { class: "charts" }, ...charts(lines, chartNames(lines))), saveCurvesButtons(), seedTable(lines, several));
  if (inFocus) document.getElementById(inFocus)?.focus({ preventScroll: true });
}

// A row for each trial whose curves are drawn.
function seedTable(lines, several) {
  const hasText = ({ name }) => lines.some(({ i }) => !["", null].includes(trials[name][i]));
  const columns = data.columns.filter(hasText);
  const rows = lines.map((line) => element("tr", {}, ...(several ? [element("td", {}, cellName(line.c))] : []),
    ...columns.map(({ name }, column) => {
      const text = String(trials[name][line.i] ?? "");
      if (name === "trial_id") return element("td", { class: name }, text, " ", copyButton(line.i));
      return column ? element("td", { class: name }, text) : element("td", { class: "switch" }, lineSwitch(line), ` ${text}`);
    })));
  const heads = columns.map(({ title, meaning }) => element("th", { scope: "col", title: meaning }, title));
  if (several) heads.unshift(element("th", { scope: "col" }, "cell"));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  return element("div", { class: "wide seeds" }, table);
}

// The outcomes of all trials of the chosen cells, also where not all of their curves are drawn.
function regionWords() {
  const counts = new Map();
  for (const i of selection.flatMap((c) => cells.members[c])) counts.set(trials.outcome[i], (counts.get(trials.outcome[i]) ?? 0) + 1);
  const words = [...counts].sort((a, b) => b[1] - a[1]).map(([outcome, num]) => `${num} ${outcome}`).join(", ");
  const stable = selection.filter((c) => lookOf(c).is_stable).length;
  const part = selection.length > MOST_CELLS ? `; curves of the first ${MOST_CELLS} cells` : "";
  return element("p", { class: "region" }, `${stable} of ${selection.length} cells stable; trials: ${words}${part}.`);
}

// What a terminal says about this cell.
function commandLine(c) {
  const places = data.axes.map((axis, a) => `${axis.name}=${axis.labels[cells.at[c][a]]}`);
  const words = cells.members[c].some(isUnstable) ? `sweep diagnose ${data.name} --cell ${places.join(",")}`
    : `sweep locate ${data.name} ${places.map((each) => `--at ${each}`).join(" ")}`;
  return element("p", { class: "command" }, element("code", {}, words), " ", element("button", { type: "button", class: "copy", "data-copy": words }, "copy"));
}

// Copies the id of a trial, for `sweep diagnose --trial`.
const copyButton = (i) => element("button", {
  type: "button", class: "copy", id: `copy-${trials.trial_id[i]}`, "data-copy": trials.trial_id[i], "aria-label": `copy the id of seed ${trials.seed[i]}`,
}, "copy");

// Switches the curves of one trial off and on.
function lineSwitch({ i, k }) {
  const id = trials.trial_id[i];
  const button = element("button", {
    type: "button", class: "line", id: `line-${id}`, "aria-pressed": String(!hidden.has(id)), "aria-label": `curves of seed ${trials.seed[i]}`,
  }, lineSample(k));
  button.addEventListener("click", () => {
    if (!hidden.delete(id)) hidden.add(id);
    drawAgain();
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

