// Predict, then reveal: outputs and At a glance stay hidden until the reader reveals each. `?teach` in an address turns this on.
"use strict";

const teach = document.querySelector("button.teach");
const answers = [...document.querySelectorAll("section#at-a-glance, article .cell:not(.tag_hide-cell) > .cell_output")];

for (const answer of answers) {
  const reveal = document.createElement("button");
  reveal.type = "button";
  reveal.className = "reveal";
  reveal.textContent = answer.matches("section") ? "Show the answer" : "Predict, then show what this gives";
  reveal.addEventListener("click", () => {
    answer.classList.add("shown");
    answer.tabIndex = -1;
    answer.focus({ preventScroll: true });
  });
  answer.before(reveal);
}

function switchTo(on) {
  root.classList.toggle("teach", on);
  teach.setAttribute("aria-pressed", on);
  for (const answer of answers) answer.classList.remove("shown");
}

if (answers.length) {
  teach.hidden = false;
  switchTo(root.classList.contains("teach"));
  teach.addEventListener("click", () => {
    const on = !root.classList.contains("teach");
    switchTo(on);
    remember("teach", on ? "on" : "off");
  });
}
