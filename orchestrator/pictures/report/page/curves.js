// --- a cell ------------------------------------------------------------------------------------

function decoded(text, kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new kind(bytes.buffer);
}

function drawCell(c) {
  const members = cells.members[c];
  const rows = members.map((i, k) => element("tr", {}, ...data.columns.map(({ name }, column) => {
    const text = String(trials[name][i] ?? "");
    return column ? element("td", {}, text) : element("td", {}, lineSample(k), ` ${text}`);
  })));
  const heads = data.columns.map(({ title, meaning }) => element("th", { scope: "col", title: meaning }, title));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const charts = Object.entries(data.curve_titles).map(([name, title]) => chart(members, name, title));
  document.getElementById("cell").replaceChildren(
    element("h3", {}, cellName(c)), element("div", { class: "wide" }, table), element("div", { class: "charts" }, ...charts));
}

function strokeOf(k) {
  const dash = look.seed_dashes[Math.floor(k / look.seed_colours.length) % look.seed_dashes.length];
  return { stroke: look.seed_colours[k % look.seed_colours.length], "stroke-dasharray": dash };
}

function lineSample(k) {
  return svg("svg", { width: 24, height: 8, "aria-hidden": "true", style: "display:inline;width:24px" },
    svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, "stroke-width": 2, ...strokeOf(k) }));
}

function chart(members, name, title) {
  const [width, height, left, bottom, top] = [560, 300, 58, 36, 14];
  const series = members.map((i, k) => ({ i, k })).filter(({ i }) => data.curves[i][name]).map(({ i, k }) => {
    const [steps, values] = data.curves[i][name];
    return { i, k, steps: decoded(steps, Int32Array), values: decoded(values, Float32Array) };
  });
  const figure = element("figure", {}, element("figcaption", {}, title));
  let [low, high, last] = [Infinity, -Infinity, 1];
  for (const { i, values } of series) {
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    last = Math.max(last, data.curves[i].last);
  }
  if (!(low <= high)) {
    figure.append(element("p", {}, series.length ? "no finite value" : "no curve"));
    return figure;
  }
  const isLog = low > 0 && high / low > look.log_curves_from;
  if (high === low) [low, high] = [low - 0.5, high + 0.5];
  const place = isLog ? Math.log10 : (v) => v;
  const toX = (step) => left + ((width - left - 10) * step) / last;
  const toY = (value) => height - bottom - ((height - bottom - top) * (place(value) - place(low))) / (place(high) - place(low));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chartWords(members, title, low, high) });
  for (const value of ticksOf(low, high, isLog)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - 10, y1: toY(value), y2: toY(value) }));
    drawing.append(svg("text", { x: left - 5, y: toY(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const step of ticksOf(0, last, false)) {
    drawing.append(svg("text", { x: toX(step), y: height - bottom + 16, "text-anchor": "middle" }, String(step)));
  }
  drawing.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
  for (const { i, k, steps, values } of series) {
    for (const [onset, recovery] of data.episodes[i]) {
      const from = toX(onset);
      const to = toX(recovery ?? data.curves[i].last);
      drawing.append(svg("rect", { class: "episode", x: from, y: top, width: Math.max(2, to - from), height: height - bottom - top },
        svg("title", {}, `seed ${trials.seed[i]}: off its trend from step ${onset} ${recovery === null ? "on" : `to ${recovery}`}`)));
    }
    const path = Array.from(steps, (step, n) => `${n ? "L" : "M"}${toX(step).toFixed(1)} ${toY(values[n]).toFixed(1)}`).join("");
    drawing.append(svg("path", { class: "curve", d: path, ...strokeOf(k) }, svg("title", {}, `seed ${trials.seed[i]}`)));
    const broken = data.curves[i][`${name}_broken`];
    if (broken !== undefined) {
      drawing.append(svg("text", { x: toX(broken), y: top + 10, "text-anchor": "middle" }, "✕", svg("title", {}, `seed ${trials.seed[i]}: not finite at step ${broken}`)));
    }
    const verdict = trials.verdict_step[i];
    if (verdict !== null) {
      drawing.append(svg("line", { class: "verdict", x1: toX(verdict), x2: toX(verdict), y1: top, y2: height - bottom },
        svg("title", {}, `seed ${trials.seed[i]}: found lost at step ${verdict}`)));
    }
  }
  figure.append(drawing);
  return figure;
}

function chartWords(members, title, low, high) {
  const episodes = members.reduce((sum, i) => sum + data.episodes[i].length, 0);
  return `${title} of ${members.length} seeds over steps, from ${tickText(low)} to ${tickText(high)}; ${episodes} episodes`;
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

