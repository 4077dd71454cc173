// Draws charts, and keeps a page from being renewed while somebody reads or chooses something in it.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function drawCharts() {
  for (const place of document.querySelectorAll(".chart[data-series]")) {
    const series = JSON.parse(place.dataset.series);
    place.replaceChildren();
    const hours = (chart, times) => times.map(time => new Date(time * 1000).toISOString().slice(11, 16));
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const line = (label, name) => ({ label, stroke: colour(name), width: 1.5, fill: colour(name) + "22", points: { show: false } });
    const most = Math.max(4, ...series.completed, ...series.failed);
    new uPlot({
      width: place.clientWidth, height: 165,
      scales: { y: { range: [0, Math.ceil(most * 1.1)] } },
      axes: [{ ...axis, values: hours }, { ...axis, size: 45 }],
      series: [{ label: "UTC", value: (chart, time) => time === null ? "" : hours(chart, [time])[0] }, line("Completed", "--good"), line("Failed or dead-lettered", "--bad")],
      tzDate: time => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
      cursor: { drag: { x: false, y: false } },
    }, [series.time, series.completed, series.failed], place);
  }
}

document.addEventListener("DOMContentLoaded", drawCharts);
document.addEventListener("htmx:afterSettle", drawCharts);
addEventListener("resize", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

document.addEventListener("htmx:beforeRequest", event => {
  const live = event.target.closest("#live");
  const polled = live !== null && event.target === live;
  const selected = String(getSelection()) !== "";
  if (polled && (document.hidden || selected || live.querySelector("details[open]") !== null)) event.preventDefault();
});

// A click on the box of a letter chooses it, and does not open it.
document.addEventListener("click", event => {
  if (event.target.matches(".letter input[type=checkbox]")) event.stopPropagation();
});
