// --- what is seen, as files ----------------------------------------------------------------------------

// The files of the map, or of the view that is shown instead.
function drawDownloads() {
  const what = choice.view === "map" ? "map" : "view";
  const place = document.getElementById("downloads");
  if (place.dataset.view === choice.view) return;
  place.dataset.view = choice.view;
  const buttons = [saveButton("save-png", `${what} as PNG`, () => savePng(shownPicture(), fileName("png"))),
    saveButton("save-svg", `${what} as SVG`, () => download(fileName("svg"), "image/svg+xml", textOf(shownPicture()))),
    saveButton("save-csv", "map as CSV", () => download(fileName("csv"), "text/csv", tableText()))];
  place.replaceChildren(...buttons.slice(choice.view === "importance" ? 2 : 0).flatMap((button) => [button, " "]));
}

const fileName = (ending) => `${data.name}_${choice.view === "map" ? "" : `${choice.view}_`}${panel().name}.${ending}`;

const quoted = (value) => {
  let text = value === null || value === undefined ? "" : String(value);
  if (/^[=+\-@]./.test(text) && Number.isNaN(Number(text))) text = `'${text}`; // a formula of a spreadsheet
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// A row for each cell of the map: its setting, what is shown, its state, and what its seeds did.
function tableText() {
  const head = [...data.axes.map(({ name }) => name), panel().name, "state", "seeds"];
  const rows = [...mapCells().values()].map((c) => [...data.axes.map((axis, a) => axis.labels[cells.at[c][a]]), panel().values[c], cells.state[c], cells.words[c]]);
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

const shownPicture = () => (choice.view !== "map" ? viewPicture() : data.is_grid ? gridPicture() : viewPicture());

const PICTURE_STYLE = "text { font: 12px system-ui, sans-serif; fill: #1a1a1a } .axis { font-weight: 600 } .grid { stroke: #dddddd } circle { stroke: #1a1a1a } "
  + ".edge { stroke: #000000; stroke-width: 3 } .curve, .through, .half, .chosen { fill: none; stroke-width: 1.6 } .half, .column { stroke: #1a1a1a } .chosen { stroke: #0b57d0; stroke-width: 3 } "
  + ".trial { fill: none; stroke-width: 7; stroke-linecap: round } .cross { stroke-width: 2 } .peak { stroke-width: 1 } .surface { opacity: 0.55 } .edge-band { fill-opacity: 0.2; stroke: none } .edge-middle, .edge-beyond { fill: none; stroke-width: 2 } "
  + ".of-stable { stroke: #0072B2 } .of-diverged { stroke: #D55E00 } .of-spiked { stroke: #E69F00 } .of-stalled { stroke: #9a6a8c } .of-collapsed { stroke: #6a3d9a } .of-degraded { stroke: #7fb8d8 } .of-pruned, .of-errored, .of-waiting, .of-planned, .of-running { stroke: #5b6470 }";

function picture(width, height, ...parts) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
    svg("style", {}, PICTURE_STYLE), svg("rect", { width, height, fill: "#ffffff" }), ...parts);
}

const pictureTitle = () => {
  const slices = choice.slices.map((slice, a) => [slice, a]).filter(([, a]) => a !== choice.x && a !== choice.y && data.axes[a].labels.length > 1);
  const words = slices.map(([slice, a]) => `${data.axes[a].name}: ${reductions.includes(slice) ? `${slice} of all` : data.axes[a].labels[slice]}`);
  return [`${data.name}: ${panel().title}`, ...words].join("; ");
};

// The drawing that is shown, with its title.
function viewPicture() {
  const points = document.querySelector("#map svg").cloneNode(true);
  points.querySelector(".stop")?.remove(); // it shows where the focus is
  for (const each of points.querySelectorAll("[tabindex]")) for (const name of ["tabindex", "role", "aria-pressed"]) each.removeAttribute(name);
  const [, , width, height] = points.getAttribute("viewBox").split(" ").map(Number);
  return picture(width, height + 24, svg("text", { x: 8, y: 17 }, choice.view === "map" ? pictureTitle() : `${data.name}: ${document.getElementById("map-title").textContent}`), svg("g", { transform: "translate(0 24)" }, ...points.childNodes));
}

function gridPicture() {
  const map = mapCells();
  const scale = colourScale(map);
  const grid = gridOf(map);
  const [cellWidth, cellHeight] = grid.isSmall ? [15, 15] : [70, 42];
  const left = 20 + 7 * Math.max(grid.axisY.name.length, ...grid.rows.map((y) => grid.axisY.heads[y].length));
  const [top, every] = [50, Math.max(1, Math.ceil(grid.columns.length / (grid.isSmall ? 16 : 40)))];
  const bottom = top + cellHeight * grid.rows.length;
  const right = left + cellWidth * grid.columns.length;
  const parts = [svg("text", { x: 8, y: 18 }, pictureTitle()), svg("text", { x: 8, y: top - 10 }, grid.axisY.name)];
  const edges = [];
  grid.rows.forEach((y, j) => {
    const up = bottom - cellHeight * (j + 1);
    parts.push(svg("text", { x: left - 6, y: up + cellHeight / 2 + 4, "text-anchor": "end" }, grid.axisY.heads[y]));
    grid.columns.forEach((_, i) => {
      const [x, c] = [left + cellWidth * i, grid.at(i, j)];
      if (c !== undefined) parts.push(...pictureCell(c, scale, x, up, cellWidth, cellHeight, grid.isSmall));
      if (grid.isEdgeRight(i, j)) edges.push(svg("line", { class: "edge", x1: x + cellWidth, x2: x + cellWidth, y1: up, y2: up + cellHeight }));
      if (grid.isEdgeUp(i, j)) edges.push(svg("line", { class: "edge", x1: x, x2: x + cellWidth, y1: up, y2: up }));
    });
  });
  grid.columns.forEach((x, i) => {
    if (i % every === 0) parts.push(svg("text", { x: left + cellWidth * (i + 0.5), y: bottom + 16, "text-anchor": "middle" }, grid.axisX.heads[x]));
  });
  parts.push(svg("text", { x: (left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, grid.axisX.name));
  const states = [...new Set([...map.values()].map((c) => cells.state[c]))].map((state) => `${look.states[state].sign} ${look.states[state].label}`.trim());
  const words = [...states, `colours from ${tickText(scale.low)} to ${tickText(scale.high)}${scale.isClipped ? ", clipped" : ""}`];
  words.forEach((line, n) => parts.push(svg("text", { x: 8, y: bottom + 58 + 17 * n }, line)));
  return picture(Math.max(right + 20, 7 * pictureTitle().length + 20), bottom + 62 + 17 * words.length, ...parts, ...edges);
}

function pictureCell(c, scale, x, y, width, height, isSmall) {
  const { paint, ink } = lookOf(c).is_painted ? painted(c, scale) : { paint: "#ffffff", ink: "#1a1a1a" };
  const drawn = [svg("rect", { x: x + 0.5, y: y + 0.5, width: width - 1, height: height - 1, fill: paint, stroke: "#dddddd", "stroke-width": lookOf(c).is_painted ? 0 : 1 }, svg("title", {}, cellWords(c)))];
  const texts = (isSmall ? lookOf(c).sign : cellText(c)).split("\n").filter(Boolean);
  texts.forEach((text, n) => {
    const mark = svg("text", { x: x + width / 2, y: y + height / 2 + 4 + 14 * (n - (texts.length - 1) / 2), "text-anchor": "middle" }, text);
    mark.style.fill = ink;
    if (isSmall) mark.style.fontSize = "9px";
    drawn.push(mark);
  });
  return drawn;
}

