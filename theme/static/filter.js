// The filter of the atlas and of the list of nodes: only items stay whose name, code or node contains the typed words.
"use strict";

const listed = document.getElementById("the-points") ?? document.getElementById("all-nodes");
const each = ":is(.zn-point, .zn-nodes .zn-searched)";
const points = [...listed.querySelectorAll(each)].map((point) => ({ point, text: (point.querySelector(".zn-searched") ?? point).textContent.toLowerCase() }));
const groups = [...listed.querySelectorAll("section, .zn-nodes > li")].filter((group) => group.querySelector(each));
const folded = [...listed.querySelectorAll("details")].filter((details) => details.querySelector(".zn-nodes"));
const noun = listed.id.split("-").at(-1);

const typed = document.createElement("input");
typed.type = "search";
typed.placeholder = "SqrtBackward0, norm, softmax …";
const left = document.createElement("span");
left.setAttribute("role", "status");
const label = document.createElement("label");
label.append(`Show the ${noun} with `, typed);
const filter = document.createElement("p");
filter.className = "filter";
filter.append(label, " ", left);
listed.insertBefore(filter, listed.querySelector("section, .cell"));

function narrow() {
  const words = typed.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const { point, text } of points) point.hidden = !words.every((word) => text.includes(word));
  for (const group of groups) group.hidden = !group.querySelector(`${each}:not([hidden])`);
  for (const details of folded) details.open ||= words.length > 0;
  left.textContent = `${points.filter(({ point }) => !point.hidden).length} of ${points.length} ${noun}`;
}

typed.addEventListener("input", narrow);
// The filter may hide the item that a link leads to, so the filter is cleared.
addEventListener("hashchange", () => {
  typed.value = "";
  narrow();
  target()?.scrollIntoView();
});
narrow();
