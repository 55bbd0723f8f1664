"use strict";
// A click on a heading sorts the table by that column, a second one the other way round; cells without a value stay last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("n");
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = row => {
      const cell = row.cells[column];
      if (!numbers) return cell.textContent;
      return cell.dataset.k === "" || cell.dataset.k === undefined ? null : (cell.dataset.k === "inf" ? Infinity : Number(cell.dataset.k));
    };
    const compare = (a, b) => numbers ? (a === b ? 0 : a - b) : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...body.rows].map(row => [key(row), row]);
    const empty = k => k === null || k === "";
    rows.sort(([a], [b]) => empty(a) || empty(b) ? empty(a) - empty(b) : (down ? compare(b, a) : compare(a, b)));
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows.map(([, row]) => row));
  }));
}
