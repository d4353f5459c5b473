// --- readings of telemetry, on request -----------------------------------------------------------------

const reading = { name: "" }; // the one that is drawn beside the loss

// A menu of what was read of these trials while they trained; nothing where nothing was.
function readingControls(lines) {
  const names = [...new Set(lines.flatMap(({ curve }) => curve.readings ?? []))];
  if (!names.length) return [];
  const box = element("select", { id: "reading" }, element("option", { value: "" }, "none"));
  for (const name of names) box.append(element("option", { value: name }, name));
  if (reading.name && !names.includes(reading.name)) box.append(element("option", { value: reading.name }, reading.name));
  box.value = reading.name;
  box.addEventListener("change", () => { reading.name = box.value; keepView(); drawSelection(); });
  return [element("label", { for: "reading" }, "telemetry", box)];
}

