// --- curves as files: what is seen, as PNG, SVG and CSV ---------------------------------------------------

const CURVE_STYLE = "text { font: 12px system-ui, sans-serif; fill: #1a1a1a } .mark { font-size: 11px } .cause { font-size: 11px } .grid { stroke: #dddddd } "
  + ".curve { fill: none; stroke-width: 1.5 } .faint { fill: none; stroke-width: 1; stroke-opacity: 0.3 } .seed-band { fill-opacity: 0.2 } "
  + ".episode { fill: #E69F00; fill-opacity: 0.15 } .verdict { stroke: #D55E00; stroke-width: 1.4; stroke-dasharray: 5 3 } .change { stroke: #5b6470; stroke-width: 1.4; stroke-dasharray: 2 2 } .cursor { display: none }";

const saveButton = (id, text, action) => {
  const button = element("button", { type: "button", id }, text);
  button.addEventListener("click", action);
  return button;
};

function saveCurvesButtons() {
  return element("p", { class: "saves" }, element("span", { class: "label" }, "save curves"),
    saveButton("curves-png", "PNG", () => savePng(curvesPicture(), curvesName("png"))), " ",
    saveButton("curves-svg", "SVG", () => download(curvesName("svg"), "image/svg+xml", textOf(curvesPicture()))), " ",
    saveButton("curves-csv", "CSV", () => download(curvesName("csv"), "text/csv", curvesTable())));
}

const curvesName = (ending) => `${data.name}_${selection.length === 1 ? cellName(selection[0]) : `${selection.length}_cells`}_curves.${ending}`;
const textOf = (drawing) => new XMLSerializer().serializeToString(drawing);

// The charts one below the other, with their titles and which colour is which seed.
function curvesPicture() {
  const parts = [];
  let [y, width] = [44, 0];
  for (const figure of document.querySelectorAll("#cell figure:has(svg.chart)")) {
    const drawing = figure.querySelector("svg.chart");
    const [, , w, h] = drawing.getAttribute("viewBox").split(" ").map(Number);
    parts.push(svg("text", { x: 8, y }, figure.querySelector("figcaption strong").textContent));
    parts.push(svg("g", { transform: `translate(0 ${y + 4})` }, ...drawing.cloneNode(true).childNodes));
    [y, width] = [y + h + 24, Math.max(width, w)];
  }
  const named = selection.length > 1 ? selection.map((c, k) => [cellName(c), k]).slice(0, MOST_CELLS) : drawnLines.map(({ i, k }) => [`seed ${trials.seed[i]}: ${trials.outcome[i]}`, k]);
  for (const [words, k] of named) {
    parts.push(svg("line", { x1: 8, x2: 32, y1: y - 4, y2: y - 4, "stroke-width": 2, ...strokeOf(k) }), svg("text", { x: 40, y }, words));
    y += 17;
  }
  const title = `${data.name}: ${selection.length === 1 ? cellName(selection[0]) : `${selection.length} cells`}`;
  return svg("svg", { width, height: y, viewBox: `0 0 ${width} ${y}` }, svg("style", {}, CURVE_STYLE), svg("rect", { width, height: y, fill: "#ffffff" }),
    svg("text", { x: 8, y: 20, style: "font-weight: 600" }, title), ...parts);
}

// A row for each drawn point of each curve in the steps that are shown.
function curvesTable() {
  const [first, end] = zoom.steps ?? [-Infinity, Infinity];
  const rows = [["cell", "seed", "trial", "curve", "step", "value"]];
  for (const { c, i, curve } of drawnLines.filter(({ i: trial }) => !hidden.has(trials.trial_id[trial]))) {
    for (const [name] of chartNames(drawnLines)) {
      if (!curve[name]) continue;
      const { steps, values } = pointsOf(curve, name);
      steps.forEach((step, n) => { if (step >= first && step <= end) rows.push([cellName(c), trials.seed[i], trials.trial_id[i], name, step, values[n]]); });
    }
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

const SHARPNESS = 2; // dots of a PNG for each pixel

// Draws the SVG onto a canvas, and gives it to the reader as a PNG.
async function savePng(drawing, name) {
  const [width, height] = ["width", "height"].map((side) => Number(drawing.getAttribute(side)));
  const image = new Image();
  const loaded = new Promise((done, fail) => { image.onload = done; image.onerror = () => fail(new Error("the picture cannot be drawn")); });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(textOf(drawing))}`;
  await loaded;
  const canvas = element("canvas", { width: Math.round(width * SHARPNESS), height: Math.round(height * SHARPNESS) });
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  element("a", { href: canvas.toDataURL("image/png"), download: safeName(name) }).click();
}

