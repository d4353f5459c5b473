// The index of all sweeps: two that are ticked are compared, and the cards are renewed while the page is open.
"use strict";

const RENEW_AFTER_MS = 4000;
const place = document.getElementById("sweeps");
const bar = document.getElementById("compare-bar");
const invitation = bar.textContent;
let ticked = []; // names, the first one ticked first

function showTicks() {
  for (const box of place.querySelectorAll("input")) {
    box.checked = ticked.includes(box.value);
    box.closest("article").classList.toggle("ticked", box.checked);
  }
  if (ticked.length < 2) {
    bar.textContent = ticked.length ? `${ticked[0]} against … tick another one.` : invitation;
    return;
  }
  const link = document.createElement("a");
  link.href = `${encodeURIComponent(ticked[0])}/#part=compare&with=${encodeURIComponent(ticked[1])}`;
  link.textContent = `Compare ${ticked[0]} with ${ticked[1]}`;
  bar.replaceChildren(link);
}

// A third tick takes the place of the second.
place.addEventListener("change", ({ target: box }) => {
  ticked = box.checked ? [...ticked.slice(0, 1), box.value] : ticked.filter((name) => name !== box.value);
  showTicks();
});

async function renew() {
  const response = await fetch(location.pathname, { cache: "no-cache" });
  if (!response.ok) return;
  const found = new DOMParser().parseFromString(await response.text(), "text/html");
  document.body.classList.remove("ended");
  const next = found.getElementById("sweeps");
  document.querySelector(".question").textContent = found.querySelector(".question").textContent;
  if (next.innerHTML === place.dataset.shown) return;
  place.dataset.shown = next.innerHTML;
  const inFocus = document.activeElement?.value ?? document.activeElement?.getAttribute("href");
  place.replaceChildren(...next.childNodes);
  showTicks();
  [...place.querySelectorAll("input, a")].find((each) => inFocus !== null && [each.value, each.getAttribute("href")].includes(inFocus))?.focus({ preventScroll: true });
}

setInterval(() => { if (!document.hidden) renew().catch(() => document.body.classList.add("ended")); }, RENEW_AFTER_MS);
showTicks();
