// --- the address: what is shown, by names, so that it holds when cells are added -------------------

const OWN = { x: "x", y: "y", metric: "show", cell: "cell", part: "part" }; // a slice has the name of its axis after "at."

function addressOfView() {
  const words = new URLSearchParams();
  words.set(OWN.x, data.axes[choice.x].name);
  if (choice.y >= 0) words.set(OWN.y, data.axes[choice.y].name);
  words.set(OWN.metric, panel().name);
  choice.slices.forEach((slice, a) => {
    if (slice !== reductions[0]) words.set(`at.${data.axes[a].name}`, reductions.includes(slice) ? slice : data.axes[a].labels[slice]);
  });
  for (const c of selection) words.append(OWN.cell, cellName(c));
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
}

function keepView() {
  history.replaceState(null, "", `#${addressOfView()}`);
}
