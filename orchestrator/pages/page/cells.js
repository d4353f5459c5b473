// --- cells on the map -----------------------------------------------------------------------------

const panel = () => data.panels[choice.panel];
const lookOf = (c) => look.states[cells.state[c]];

// The cell that represents several: the one at the reduction's rank; if unknown cells may fall there, the first
// unknown one. Unknown cells rank between those within the edge and those over it, so of the known ones only a degraded
// cell can lose its place to one of them.
function taken(group, how) {
  const { rank } = panel();
  const ordered = [...group].sort((a, b) => rank[a] - rank[b]);
  const place = Math.min(Math.floor(data.reductions[how] * ordered.length), ordered.length - 1);
  const unknown = ordered.filter((c) => !lookOf(c).is_known);
  const numStable = ordered.filter((c) => lookOf(c).is_stable).length;
  const { is_known, is_stable, is_over_edge } = lookOf(ordered[place]);
  const isDegraded = is_known && !is_stable && !is_over_edge;
  return !is_known || (isDegraded && place < numStable + unknown.length) ? unknown[0] : ordered[place];
}

// "column,row" -> the number of a cell, for the axes and slices chosen.
function mapCells() {
  const { x, y, slices } = choice;
  const others = data.axes.map((_, a) => a).filter((a) => a !== x && a !== y);
  const fixed = others.filter((a) => !reductions.includes(slices[a]));
  const groups = new Map();
  cells.at.forEach((at, c) => {
    if (fixed.some((a) => at[a] !== Number(slices[a]))) return;
    const key = `${at[x]},${y < 0 ? 0 : at[y]}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(c);
  });
  const how = others.map((a) => slices[a]).find((slice) => reductions.includes(slice)) || reductions[0];
  return new Map([...groups].map(([key, group]) => [key, taken(group, how)]));
}

// --- colours --------------------------------------------------------------------------------------

function colourScale(map) {
  const { values, range, colours } = panel();
  const table = look.colours[colours];
  const all = [...map.values()].filter((c) => values[c] !== null);
  const setting = new Set(all.filter((c) => lookOf(c).sets_colours).map((c) => values[c]));
  let [low, high] = [0, 1];
  if (range) {
    [low, high] = range;
  } else if (all.length) {
    const shown = setting.size > 1 ? [...setting] : all.map((c) => values[c]);
    [low, high] = endsOf(shown);
    if (high === low) [low, high] = [low - look.padding, high + look.padding];
  }
  const isLog = !range && low > 0 && high / low > look.log_colours_from;
  const place = isLog ? Math.log10 : (v) => v;
  const isClipped = all.some((c) => values[c] < low || values[c] > high);
  return { low, high, place, table, isClipped };
}

// The colour of a cell and the ink on it.
function painted(c, scale) {
  const value = panel().values[c];
  if (value === null) return look.blank;
  const [low, high] = [scale.place(scale.low), scale.place(scale.high)];
  const unit = (scale.place(Math.min(Math.max(value, scale.low), scale.high)) - low) / (high - low);
  const { paint, ink } = scale.table;
  const i = Math.min(Math.floor(unit * paint.length), paint.length - 1);
  return { paint: paint[i], ink: ink[i] };
}

// --- words ----------------------------------------------------------------------------------------

const cellName = (c) => data.axes.map((axis, a) => `${axis.name}=${axis.labels[cells.at[c][a]]}`).join(" ");

function cellWords(c) {
  const { title, texts, range } = panel();
  const value = range || !texts[c] ? "" : `; ${title} ${texts[c]}`;
  return `${cellName(c)}: ${cells.words[c]}${value}${c === data.recommended ? "; the setting to take" : ""}`;
}

const cellText = (c) => [lookOf(c).sign, panel().texts[c]].filter(Boolean).join("\n");

