// The filter of a generated list: the atlas, the nodes, or the names of an API. Only items stay that contain the typed words.
"use strict";

const noun = document.querySelector("section > dl.py") ? "names" : document.getElementById("the-points") ? "points" : "nodes";
const listed = document.getElementById("the-points") ?? document.getElementById("all-nodes") ?? document.querySelector("article > section");
const each = ":is(.zn-point, .zn-nodes .zn-searched, section > dl.py)";
const points = [...listed.querySelectorAll(each)].map((point) => ({ point, text: searched(point).toLowerCase() }));
const groups = [...listed.querySelectorAll("section, .zn-nodes > li")].filter((group) => group.querySelector(each));
const folded = [...listed.querySelectorAll("details")].filter((details) => details.querySelector(".zn-nodes"));

// The name, the code and the node of a point; the whole name of a function, and of a class with its methods.
function searched(point) {
  const names = [...point.querySelectorAll("dt[id]")].map((signature) => signature.id);
  return names.join(" ") || (point.querySelector(".zn-searched") ?? point).textContent;
}

const typed = document.createElement("input");
typed.type = "search";
typed.placeholder = noun === "names" ? "part of a name" : "SqrtBackward0, norm, softmax …";
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

// A link to a node shows this node with its answer. Any other link clears the filter, which may hide where it leads.
function follow() {
  typed.value = /^#node-(\w+)$/.exec(location.hash)?.[1] ?? "";
  narrow();
  target()?.scrollIntoView();
}

typed.addEventListener("input", narrow);
addEventListener("hashchange", follow);
follow();
