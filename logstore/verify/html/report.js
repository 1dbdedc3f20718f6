"use strict";
// Sorting and filtering; the page is complete without them.
const ranks = { error: "0", warning: "1", info: "2" };
const textOf = ({ dataset, textContent }) => dataset.v ?? ranks[textContent] ?? textContent;
const numberOf = (text) => (/^-?[\d,.]+$/.test(text) ? Number(text.replaceAll(",", "")) : NaN);

/** Numbers by value before texts; what is empty comes last either way. */
function compare(one, two, direction) {
  if (one === "" || two === "") return (one === "") - (two === "");
  const [a, b] = [numberOf(one), numberOf(two)];
  if (!Number.isNaN(a) && !Number.isNaN(b)) return direction * (a - b);
  return direction * one.localeCompare(two, "en", { numeric: true });
}

function sortBy(table, header) {
  const direction = header.ariaSort === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
  header.ariaSort = direction === 1 ? "ascending" : "descending";
  const rows = Array.from(table.tBodies[0].rows, (row) => [textOf(row.cells[header.cellIndex]), row]);
  rows.sort(([one], [two]) => compare(one, two, direction));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const labels = Array.from(table.tHead.rows[0].cells, (header) => header.textContent);
  for (const row of table.tBodies[0].rows)
    for (const td of row.cells) td.dataset.label = labels[td.cellIndex];
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header));
    header.append(button);
  }
}

const form = document.querySelector("form.filter");
if (form) {
  const rows = Array.from(document.querySelector("#finding-rows").tBodies[0].rows, (row) => ({
    row, severity: row.cells[0].textContent, text: row.textContent.toLowerCase(),
  }));
  const apply = () => {
    const wanted = form.querySelector("[type=search]").value.toLowerCase().split(/\s+/);
    const severities = new Set(Array.from(form.querySelectorAll(":checked"), (box) => box.value));
    let shown = 0;
    for (const { row, severity, text } of rows) {
      row.hidden = !(severities.has(severity) && wanted.every((word) => text.includes(word)));
      shown += !row.hidden;
    }
    form.querySelector("output").value = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
}
