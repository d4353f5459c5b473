// --- a cell ------------------------------------------------------------------------------------

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new kind(bytes.buffer);
}

const hidden = new Set(); // trials whose curves are switched off
const scales = {}; // curve -> log or linear, where chosen
let asked = 0; // of several answers only the newest is drawn

// The curves of these trials: of the page itself, or of the server that it came from, which sends all points of a part.
async function curvesOf(members) {
  if (!isLive()) return members.map((i) => data.curves[i]);
  const words = { trials: members.map((i) => trials.trial_id[i]).join(",") };
  if (reading.name) words.reading = reading.name;
  if (zoom.steps !== null) words.steps = zoom.steps.join(":");
  return ask("curves", words);
}

async function drawSelection() {
  const place = document.getElementById("cell");
  if (!selection.length) {
    place.replaceChildren(element("p", {}, "Choose a cell to see its seeds' curves; with Shift, several to compare."));
    drawDiagnoses([]);
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
  if (turn !== asked || view !== data) return;
  drawCells(place, chosen.map(({ c, i }, k) => ({ c, i, k, curve: curves[k] })));
  drawDiagnoses(chosen.map(({ i }) => i));
}

function drawCells(place, lines) {
  const several = selection.length > 1;
  const inFocus = document.activeElement?.id;
  const hasText = ({ name }) => lines.some(({ i }) => !["", null].includes(trials[name][i]));
  const columns = data.columns.filter(hasText);
  const rows = lines.map((line) => element("tr", {}, ...(several ? [element("td", {}, cellName(line.c))] : []),
    ...columns.map(({ name }, column) => {
      const text = String(trials[name][line.i] ?? "");
      if (name === "trial_id") return element("td", { class: name }, text, " ", copyButton(line.i));
      return column ? element("td", { class: name }, text) : element("td", {}, lineSwitch(place, lines, line), ` ${text}`);
    })));
  const heads = columns.map(({ title, meaning }) => element("th", { scope: "col", title: meaning }, title));
  if (several) heads.unshift(element("th", { scope: "col" }, "cell"));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const drawn = Object.entries(data.curve_titles).filter(([name]) => name in { loss: 1, grad_norm: 1 } || lines.some(({ curve }) => curve[name]));
  if (lines.some(({ curve }) => curve[reading.name])) drawn.push([reading.name, reading.name]);
  const charts = drawn.map(([name, title], n) => chart(place, lines, name, title, n));
  const last = Math.max(1, ...lines.map(({ curve }) => curve.last ?? 0));
  const controls = element("div", { class: "controls" }, zoomControls(last), ...readingControls(lines));
  const head = several ? `${selection.length} cells compared` : cellName(selection[0]);
  const command = several ? [] : [commandLine(selection[0])];
  place.replaceChildren(element("h3", {}, head), ...command, controls, element("div", { class: "charts" }, ...charts), element("div", { class: "wide" }, table));
  if (inFocus) document.getElementById(inFocus)?.focus({ preventScroll: true });
}

// What a terminal says about this cell.
function commandLine(c) {
  const cell = data.axes.map((axis, a) => `${axis.name}=${axis.labels[cells.at[c][a]]}`).join(",");
  const verb = cells.members[c].some(isUnstable) ? "diagnose" : "locate";
  const words = verb === "diagnose" ? `sweep diagnose ${data.name} --cell ${cell}` : `sweep locate ${data.name} ${cell.split(",").map((each) => `--at ${each}`).join(" ")}`;
  return element("p", { class: "command" }, element("code", {}, words), " ", element("button", { type: "button", class: "copy", "data-copy": words }, "copy"));
}

// Copies the id of a trial, for `sweep diagnose --trial`.
function copyButton(i) {
  const id = trials.trial_id[i];
  const button = element("button", { type: "button", class: "copy", id: `copy-${id}`, "aria-label": `copy the id of seed ${trials.seed[i]}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(id);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.parentNode); // the reader copies it
    }
  });
  return button;
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

