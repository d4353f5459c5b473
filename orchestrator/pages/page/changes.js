// --- news of the data: what has changed, put in its places ---------------------------------------------

// Each of ``news`` is a value at a path, or what is now at some places of the list at a path.
function applyChanges(found, news) {
  const root = { found };
  for (const { path, value, at, to } of news) {
    const way = ["found", ...path];
    const holder = way.slice(0, -1).reduce((each, key) => each[key], root);
    const key = way[way.length - 1];
    if (at === undefined) holder[key] = value;
    else at.forEach((place, n) => { holder[key][place] = to[n]; });
  }
  return root.found;
}

