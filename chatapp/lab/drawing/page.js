// Shows the numbers at the pointer; a chosen head's lines, and each head's weight on a chosen token.
const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const place = event.target.closest("[data-note]");
  tip.hidden = !place;
  if (!place) return;
  tip.textContent = place.dataset.note;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 18, innerHeight - tip.offsetHeight - 8) + "px";
});
const percent = (weight) => (100 * weight).toFixed(1) + "%";
for (const section of document.querySelectorAll("section")) {
  const lines = section.querySelector("[data-heads]");
  if (!lines) continue;
  const heads = JSON.parse(lines.dataset.heads);
  const all = (name) => [...section.querySelectorAll(`[data-${name}]`)];
  const rows = all("line"), cells = all("cell"), tokens = all("token");
  const note = (place, weight) => {
    place.dataset.note = place.dataset.note.replace(/[^ ]*$/, weight.toFixed(4));
  };
  const say = (begin, pattern, words) => {
    const line = [...section.querySelectorAll("text")].find((one) => begin.test(one.textContent));
    if (!line) return;
    line.textContent = line.textContent.replace(pattern, words);
    line.removeAttribute("textLength");
  };
  const choose = (group, chosen) => {
    for (const one of group) one.classList.toggle("chosen", one === chosen);
  };
  const show = (weights) => {
    const largest = Math.max(...weights.slice(1), 1e-9);
    rows.forEach((row, place) => {
      const weight = weights[place], path = row.querySelector("path");
      row.querySelector(".n").textContent = percent(weight).padStart(5);
      path.setAttribute("stroke-width", 14 * weight);
      path.setAttribute("stroke-opacity", Math.min(1, 0.35 + weight));
      note(row, weight);
      for (const token of tokens.filter((one) => one.dataset.token === row.dataset.line)) {
        token.querySelector("rect").setAttribute("fill-opacity", Math.min(1, weight / largest));
        note(token, weight);
      }
    });
  };
  const mean = rows.map((row, place) => {
    const every = heads.flat().map((weights) => weights[place]);
    return every.reduce((sum, weight) => sum + weight, 0) / every.length;
  });
  for (const cell of cells) cell.addEventListener("click", () => {
    const [layer, head] = cell.dataset.cell.split(".");
    const isOff = cell.classList.contains("chosen");
    choose(cells, isOff ? null : cell);
    show(isOff ? mean : heads[layer][head]);
    const words = isOff ? "average of all heads" : `layer ${layer}, head ${head}`;
    say(/ attends to: /, /attends to: .*/, `attends to: ${words}`);
  });
  rows.forEach((row, place) => row.addEventListener("click", () => {
    choose(rows, row);
    const token = row.dataset.note.replace(/: [^:]*$/, "");
    say(/^each head's weight on /, /token .*, in/, `${token}, in`);
    for (const cell of cells) {
      const [layer, head] = cell.dataset.cell.split(".");
      const weight = heads[layer][head][place];
      cell.querySelector("rect").setAttribute("fill-opacity", Math.sqrt(weight));
      cell.querySelector("text").textContent = (100 * weight).toFixed(1).padStart(5);
      note(cell, weight);
    }
  }));
}
