// --- the parts of the page: one is shown, the others are a click away -------------------------------------
"use strict";

const outline = document.getElementById("outline");
let shownPart = ""; // the name of the part that is shown
let whenShown = () => {}; // what else is drawn then

const partsOf = (place) => place.dataset.tab.split(" ");
const hasPart = (name) => [...document.querySelectorAll("[data-tab]")].some((place) => partsOf(place).includes(name) && place.textContent.trim() !== "");

// Shows a part; an unknown or empty one leaves the first that has something.
function showPart(name) {
  const buttons = [...outline.querySelectorAll("button")];
  for (const button of buttons) button.hidden = !hasPart(button.dataset.part);
  const found = buttons.find((button) => button.dataset.part === name && !button.hidden) ?? buttons.find((button) => !button.hidden);
  const before = shownPart;
  shownPart = found?.dataset.part ?? "";
  for (const button of buttons) button.setAttribute("aria-current", String(button === found));
  for (const place of document.querySelectorAll("[data-tab]")) place.hidden = !partsOf(place).includes(shownPart);
  if (before !== shownPart) whenShown();
}

outline.addEventListener("click", (event) => {
  const name = event.target.dataset?.part;
  if (name === undefined) return;
  showPart(name);
  if (typeof keepView === "function") keepView();
});

// Arrow keys walk over the parts.
outline.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const buttons = [...outline.querySelectorAll("button:not([hidden])")];
  buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length]?.focus();
});

// Copies what a button is for; where the browser refuses, the text beside it is selected.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling ?? button.parentNode);
  }
});

outline.hidden = false;
showPart("map");
