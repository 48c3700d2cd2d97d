// Predict, then reveal: outputs and At a glance are hidden, and a button before each shows it, and hides it again. `?teach` in an
// address turns this on. The switch also appears on pages without outputs, whose text would otherwise stay large.
"use strict";

const teach = document.querySelector("button.teach");
const answers = [...document.querySelectorAll("section#at-a-glance, article .cell:not(.tag_hide-cell) > .cell_output")];

const reveals = answers.map((answer) => {
  const reveal = document.createElement("button");
  const [show, hide] = answer.matches("section")
    ? ["Show the answer", "Hide the answer"]
    : ["Predict, then show what this gives", "Hide what this gives"];
  reveal.type = "button";
  reveal.className = "reveal";
  answer.before(reveal);

  function set(shown) {
    answer.classList.toggle("shown", shown);
    reveal.setAttribute("aria-expanded", shown);
    reveal.textContent = shown ? hide : show;
  }
  reveal.addEventListener("click", () => set(!answer.classList.contains("shown")));
  return set;
});

function switchTo(on) {
  root.classList.toggle("teach", on);
  teach.setAttribute("aria-pressed", on);
  for (const set of reveals) set(false);
}

if (answers.length || root.classList.contains("teach")) {
  teach.hidden = false;
  switchTo(root.classList.contains("teach"));
  teach.addEventListener("click", () => {
    const on = !root.classList.contains("teach");
    switchTo(on);
    remember("teach", on ? "on" : "off");
  });
}
