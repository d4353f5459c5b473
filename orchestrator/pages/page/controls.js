// --- controls ----------------------------------------------------------------------------------

function selectBox(id, label, options, value, change) {
  const box = element("select", { id });
  for (const [key, text, meaning] of options) box.append(element("option", { value: key, title: meaning || text }, text));
  box.value = String(value);
  box.title = box.selectedOptions[0]?.title || "";
  box.addEventListener("change", () => { change(box.value); keepView(); drawControls(); drawMap(); document.getElementById(id)?.focus(); });
  return element("label", { for: id }, label, box);
}

function drawControls() {
  document.getElementById("controls").hidden = ["edge", "importance"].includes(choice.view);
  const names = data.axes.map((axis, a) => [a, axis.name]);
  const boxes = [
    selectBox("metric", "show", data.panels.map(({ name, title, meaning }) => [name, title, meaning]), panel().name, (v) => {
      choice.panel = data.panels.findIndex(({ name }) => name === v);
    }),
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
    const options = [...reductions.map((how) => [how, `${how} of all`]), ...axis.labels.map((label, i) => [i, label])];
    boxes.push(selectBox(`slice-${a}`, axis.name, options, choice.slices[a], (v) => {
      choice.slices[a] = v;
      // One reduction serves all axes that are not shown: the worst of the medians is not a cell.
      if (reductions.includes(v)) choice.slices = choice.slices.map((slice) => (reductions.includes(slice) ? v : slice));
    }));
  });
  document.getElementById("controls").replaceChildren(...boxes);
}

function drawAll() {
  if (!data.axes.length || !trials.seed.length) return;
  drawControls();
  drawViews();
  drawMap();
  drawSelection();
}

// New data with the same view, and the same cell in focus.
function showData(found) {
  const view = addressOfView();
  const [inFocus, scrolled] = [document.activeElement, document.getElementById("map").scrollLeft];
  const place = inFocus?.dataset?.cell;
  readData(found);
  takeView(view);
  drawAll();
  document.getElementById("map").scrollLeft = scrolled;
  const again = place !== undefined ? [...document.querySelectorAll("#map [data-cell]")].find((each) => each.dataset.cell === place)
    : document.getElementById(inFocus?.id || null);
  again?.focus({ preventScroll: true });
}

takeView(location.hash.slice(1));
// An address without cells shows an unstable cell beside the recommended one.
if (!selection.length && !/[#&](cell|from|part)=/.test(location.hash) && data.start !== null) selection = [data.start];
whenShown = () => { if (shownPart === "map") drawAll(); };
drawAll();

// Drawings are as wide as their columns.
let lastWidth = innerWidth;
let redrawn = 0;
addEventListener("resize", () => {
  clearTimeout(redrawn);
  redrawn = setTimeout(() => {
    if (innerWidth === lastWidth || shownPart !== "map") return;
    lastWidth = innerWidth;
    if (choice.view !== "map" || !data.is_grid) drawMap();
    if (drawnLines.length) drawAgain();
  }, 150);
});
addEventListener("hashchange", () => { takeView(location.hash.slice(1)); drawAll(); });
