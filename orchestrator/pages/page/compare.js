// --- comparison with another sweep of the folder: the answer of `sweep compare` ---------------------------

async function offerComparison() {
  const others = await ask("others").catch(() => []);
  if (!others.length) return;
  const box = element("select", { id: "other" }, element("option", { value: "" }, "no other"));
  for (const name of others) box.append(element("option", { value: name }, name));
  const text = element("div", { class: "answer" });
  text.hidden = true;
  const show = async () => {
    const name = box.value;
    otherSweep = name;
    text.hidden = !name;
    if (!name) return;
    text.textContent = "…";
    const said = await ask("comparison", { with: name }).then((answer) => answer.html, () => null);
    if (box.value !== name) return;
    if (said === null) text.textContent = "no comparison: the server does not answer";
    else takeAnswer(text, said);
  };
  box.addEventListener("change", () => { show(); keepView(); });
  const label = element("label", { for: "other" }, `${data.name} against `, box);
  document.getElementById("compare").replaceChildren(element("h2", {}, "Comparison"), element("p", {}, label), text);
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (others.includes(wanted.get(OWN.other))) {
    box.value = wanted.get(OWN.other);
    show();
  }
  showPart(wanted.get(OWN.part) ?? shownPart);
}

offerComparison();
