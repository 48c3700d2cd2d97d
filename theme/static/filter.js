// The filter of the atlas: only points stay whose name, code or node contains the typed words.
"use strict";

const atlas = document.getElementById("the-points");
const points = [...atlas.querySelectorAll(".zn-point")].map((point) => ({ point, text: point.querySelector(".zn-searched").textContent.toLowerCase() }));
const groups = [...atlas.querySelectorAll("section")].filter((section) => section.querySelector(".zn-point"));

const typed = document.createElement("input");
typed.type = "search";
typed.placeholder = "SqrtBackward0, norm, softmax …";
const left = document.createElement("span");
left.setAttribute("role", "status");
const label = document.createElement("label");
label.append("Show the points with ", typed);
const filter = document.createElement("p");
filter.className = "filter";
filter.append(label, " ", left);
atlas.insertBefore(filter, atlas.querySelector("section"));

function narrow() {
  const words = typed.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const { point, text } of points) point.hidden = !words.every((word) => text.includes(word));
  for (const group of groups) group.hidden = !group.querySelector(".zn-point:not([hidden])");
  left.textContent = `${points.filter(({ point }) => !point.hidden).length} of ${points.length} points`;
}

typed.addEventListener("input", narrow);
// The filter may hide the point that a link leads to, so the filter is cleared.
addEventListener("hashchange", () => {
  typed.value = "";
  narrow();
  target()?.scrollIntoView();
});
narrow();
