// --- the edge against another axis -------------------------------------------------------------------

function drawEdge() {
  const figure = document.getElementById("edge");
  if (figure) fillEdge(figure, figure.dataset.edge);
}

function fillEdge(figure, text) {
  const { across, along, lines, is_curve: isCurve, is_fitted: isFitted } = JSON.parse(text);
  const [width, height, left, right, top, bottom] = [640, 360, 80, 625, 30, 315];
  const span = (low, high, from, to) => (place) => from + ((to - from) * (high > low ? (place - low) / (high - low) : 0.5));
  const toX = span(across.low, across.high, left + (isCurve ? 0 : 25), right - (isCurve ? 0 : 25));
  const toY = span(along.low, along.high, bottom, top);
  const words = lines.map(({ label, points }) => `${label ? `${label}: ` : ""}${points.filter(({ at }) => at !== undefined).length} edges`).join("; ");
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `edge along ${along.name} against ${across.name}; ${words}; the table below has the numbers` });
  for (const [place, text] of along.ticks) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: right, y1: toY(place), y2: toY(place) }),
      svg("text", { x: left - 6, y: toY(place) + 4, "text-anchor": "end" }, text));
  }
  for (const [place, text] of across.ticks) drawing.append(svg("text", { x: toX(place), y: bottom + 18, "text-anchor": "middle" }, text));
  drawing.append(svg("text", { x: 4, y: 14 }, `edge along ${along.name}`), svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, across.name));
  lines.forEach((line, n) => {
    const shift = isCurve ? 0 : 9 * (n - (lines.length - 1) / 2); // bars of several lines do not cover each other
    const part = svg("g", { class: "edge-line", stroke: line.colour, fill: line.colour });
    part.append(...(isCurve ? edgeCurve(line, toX, toY) : []));
    line.points.forEach((point, k) => {
      if (!isCurve || (k - 6 * n) % 12 === 0 || point.at !== undefined) part.append(...edgeMark(point, toX(point.x) + shift, toY, { isCurve, top, bottom }));
    });
    drawing.append(part);
  });
  const key = lines.filter(({ label }) => label).map(({ label, colour }) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour;
    return element("li", {}, swatch, ` ${label}`);
  });
  const bars = isFitted ? "95 % interval" : "between two neighbours, one stable and one not";
  key.push(element("li", {}, `${isCurve ? "band" : "bar"}: ${bars}`), element("li", {}, "△ ▽ beyond what was tried"));
  figure.replaceChildren(drawing, element("ul", { class: "key" }, ...key));
}

// The fitted edge as a line within its band, in as many pieces as there are gaps. Rows with several edges have bars.
function edgeCurve({ points }, toX, toY) {
  const pieces = [];
  let before = null;
  for (const point of points) {
    const isAlone = points.filter(({ x }) => x === point.x).length === 1;
    const continues = before !== null && point.at !== undefined && isAlone;
    if (point.at === undefined || !isAlone) before = null;
    else if (continues) pieces[pieces.length - 1].push(point);
    else pieces.push([point]);
    if (point.at !== undefined && isAlone) before = point;
  }
  return pieces.flatMap((piece) => {
    const [low, high] = ["low", "high"].map((end) => piece.map((point) => `${toX(point.x).toFixed(1)} ${toY(point[end]).toFixed(1)}`));
    const middle = piece.filter(({ at }) => at !== null).map(({ x, at }) => `${toX(x).toFixed(1)} ${toY(at).toFixed(1)}`);
    const drawn = [svg("path", { class: "edge-band", d: `M${[...low, ...high.reverse()].join("L")}Z` })];
    if (middle.length > 1) drawn.push(svg("path", { class: "edge-middle", d: `M${middle.join("L")}` }));
    return drawn;
  });
}

// One row: a point in its bar, or a triangle towards where its edge would lie.
function edgeMark(point, x, toY, { isCurve, top, bottom }) {
  const title = svg("title", {}, point.words);
  if (point.at === undefined) {
    if (point.is_beyond_high === null) return [];
    const [tip, base] = point.is_beyond_high ? [top - 10, top - 2] : [bottom - 2, bottom - 10];
    return [svg("path", { class: "edge-beyond", d: `M${x} ${tip}L${x - 5} ${base}L${x + 5} ${base}Z` }, title)];
  }
  if (isCurve) return [];
  const bar = svg("line", { x1: x, x2: x, y1: toY(point.low), y2: toY(point.high), "stroke-width": 2 }, title);
  if (point.at === null) return [bar];
  return [bar, svg("circle", { cx: x, cy: toY(point.at), r: 4.5 }, svg("title", {}, point.words))];
}

drawEdge();

