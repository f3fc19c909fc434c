// Tells each cell of a list its column's name, for phones, where a row is a card; and which cells say nothing.
"use strict";
(() => {
  const table = document.getElementById("result_list");
  if (!table) return;
  const labels = [...table.tHead.rows[0].cells].map((cell) => (cell.querySelector(".text") || cell).textContent.trim());
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, index) => {
      if (cell.classList.contains("action-checkbox")) return;
      cell.dataset.label = labels[index];
      cell.classList.toggle("is-empty", ["", "-"].includes(cell.textContent.trim()) && !cell.querySelector("img, input"));
    });
  }
})();
