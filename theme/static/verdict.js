// Verdict tables: a reader can hide methods. Elements in which a shown method differs from the reference are marked.
// Without this script, the full table is shown.
"use strict";

for (const table of document.querySelectorAll("table[data-verdict]")) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows];
  const foot = table.tFoot.rows[0];
  const status = document.createElement("p");
  status.className = "zn-note";
  status.setAttribute("role", "status");

  const choice = document.createElement("fieldset");
  choice.className = "zn-methods";
  const legend = document.createElement("legend");
  legend.textContent = "Methods shown";
  choice.append(legend);
  // The first two columns are the element and its reference.
  const boxes = heads.slice(2).map((head) => option(head.textContent, true));
  const only = option("only elements that differ", false);

  function option(text, checked) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = checked;
    label.append(box, ` ${text}`);
    choice.append(label);
    box.addEventListener("change", update);
    return box;
  }

  function update() {
    const shown = boxes.map((box) => box.checked);
    for (const line of [table.tHead.rows[0], ...rows, foot]) {
      shown.forEach((show, method) => (line.cells[method + 2].hidden = !show));
    }
    const differing = rows.filter((row) =>
      shown.some((show, method) => {
        const judged = row.cells[method + 2].querySelector("[data-judged]");
        return show && judged && judged.dataset.judged !== "right";
      }),
    );
    // If no element differs, the choice is disabled, because a table without rows would say less than the full table.
    only.disabled = differing.length === 0;
    for (const row of rows) {
      const differs = differing.includes(row);
      row.classList.toggle("zn-differs", differs);
      row.hidden = only.checked && !only.disabled && !differs;
    }
    status.textContent = `Elements that differ from the reference in the methods shown: ${differing.length} of ${rows.length}.`;
  }

  const box = table.closest(".zn-scroll");
  box.before(choice);
  box.after(status);
  update();
}
