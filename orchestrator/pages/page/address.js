// --- the address: what is shown, by names, so that it holds when cells are added -------------------

const OWN = { x: "x", y: "y", metric: "show", cell: "cell", part: "part", view: "view", from: "from", to: "to", steps: "steps", smooth: "smooth", seeds: "seeds", reading: "telemetry", other: "with" };
const MOST_NAMED = 8; // cells in the address; of a larger region its corners, if they say which cells it has. A slice has the name of its axis after "at.", a scale that of its curve after "scale."

function addressOfView() {
  const words = new URLSearchParams();
  words.set(OWN.x, data.axes[choice.x].name);
  if (choice.y >= 0) words.set(OWN.y, data.axes[choice.y].name);
  words.set(OWN.metric, panel().name);
  choice.slices.forEach((slice, a) => {
    if (slice !== reductions[0]) words.set(`at.${data.axes[a].name}`, reductions.includes(slice) ? slice : data.axes[a].labels[slice]);
  });
  const corners = selection.length > MOST_NAMED ? [selection[0], selection[selection.length - 1]] : [];
  if (corners.length && String(regionOf(...corners)) === String(selection)) {
    words.set(OWN.from, cellName(corners[0]));
    words.set(OWN.to, cellName(corners[1]));
  } else for (const c of selection) words.append(OWN.cell, cellName(c));
  if (choice.view !== "map") words.set(OWN.view, choice.view);
  if (zoom.steps !== null) words.set(OWN.steps, zoom.steps.join("-"));
  if (curveLook.smooth !== null) words.set(OWN.smooth, curveLook.smooth);
  if (curveLook.seeds !== "lines") words.set(OWN.seeds, curveLook.seeds);
  if (reading.name) words.set(OWN.reading, reading.name);
  for (const [name, scale] of Object.entries(scales)) words.set(`scale.${name}`, scale);
  if (otherSweep) words.set(OWN.other, otherSweep);
  if (shownPart !== "map") words.set(OWN.part, shownPart);
  return words.toString();
}

// Takes from the address what the sweep has; the rest stays as it is at first.
function takeView(text) {
  const words = new URLSearchParams(text);
  showPart(words.get(OWN.part) ?? "map");
  const axisOf = (name) => data.axes.findIndex((axis) => axis.name === name);
  const x = axisOf(words.get(OWN.x));
  const y = axisOf(words.get(OWN.y));
  Object.assign(choice, { x: 0, y: data.axes.length > 1 ? 1 : -1 });
  if (x >= 0 && (data.axes.length < 2 || (y >= 0 && y !== x))) Object.assign(choice, { x, y });
  choice.panel = Math.max(0, data.panels.findIndex(({ name }) => name === words.get(OWN.metric)));
  choice.slices = data.axes.map(({ name, labels }) => {
    const slice = words.get(`at.${name}`);
    if (reductions.includes(slice)) return slice;
    return labels.includes(slice) ? labels.indexOf(slice) : reductions[0];
  });
  const numbers = new Map(cells.at.map((_, c) => [cellName(c), c]));
  selection = words.getAll(OWN.cell).filter((name) => numbers.has(name)).map((name) => numbers.get(name));
  choice.view = words.get(OWN.view) in VIEWS ? words.get(OWN.view) : "map";
  const corners = [words.get(OWN.from), words.get(OWN.to)].map((name) => numbers.get(name));
  if (!selection.length && !corners.includes(undefined)) selection = regionOf(...corners);
  takeCurveLook(words);
}

function takeCurveLook(words) {
  const steps = /^(\d+)-(\d+)$/.exec(words.get(OWN.steps) ?? "");
  zoom.steps = steps && Number(steps[1]) < Number(steps[2]) ? [Number(steps[1]), Number(steps[2])] : null;
  const smooth = words.has(OWN.smooth) ? Number(words.get(OWN.smooth)) : null;
  curveLook.smooth = smooth !== null && smooth >= 0 && smooth <= SLIDER_END ? smooth : null;
  curveLook.seeds = words.get(OWN.seeds) === "band" ? "band" : "lines";
  reading.name = words.get(OWN.reading) ?? "";
  for (const name of Object.keys(scales)) delete scales[name];
  for (const [key, scale] of words) if (key.startsWith("scale.") && ["log", "linear"].includes(scale)) scales[key.slice("scale.".length)] = scale;
}

function keepView() {
  history.replaceState(null, "", `#${addressOfView()}`);
}
