// --- the cells of a map as rows and columns, for the page and for a picture ---------------------------

// Columns and rows that have cells, the cell at a place of them, and whether the edge lies beyond it.
function gridOf(map) {
  const places = [...map.keys()].map((key) => key.split(",").map(Number));
  const [columns, rows] = [0, 1].map((i) => [...new Set(places.map((place) => place[i]))].sort((a, b) => a - b));
  const at = (i, j) => map.get(`${columns[i]},${rows[j]}`);
  const differ = (c, next) => c !== undefined && next !== undefined && lookOf(c).is_known && lookOf(next).is_known
    && lookOf(c).is_over_edge !== lookOf(next).is_over_edge;
  const isEdgeRight = (i, j) => differ(at(i, j), at(i + 1, j));
  const isEdgeUp = (i, j) => differ(at(i, j), at(i, j + 1));
  const axisX = data.axes[choice.x];
  const axisY = choice.y < 0 ? { name: "", heads: [""] } : data.axes[choice.y];
  return { columns, rows, at, isEdgeRight, isEdgeUp, axisX, axisY, isSmall: map.size > look.text_room };
}

