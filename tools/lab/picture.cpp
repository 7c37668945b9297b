#include "tools/lab/picture.hpp"

#include <fmt/format.h>

#include <span>
#include <tuple>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

// A page that draws itself from the JSON in it.
constexpr const char* kPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title></title><style>
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --line: #d5dae0; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e4e8ec; --line: #333a42; } }
body { background: var(--back); color: var(--text); font: 14px/1.4 system-ui, sans-serif; margin: 24px 24px 60px; }
h1 { font-size: 20px; } h2 { font-size: 15px; margin: 28px 0 6px; font-weight: 600; }
.scroll { overflow: auto; max-height: 85vh; border: 1px solid var(--line); }
table { border-collapse: collapse; font: calc(11px * var(--zoom, 1))/1 ui-monospace, monospace; }
th { position: sticky; left: 0; background: var(--back); font-weight: 400; text-align: right; padding: 2px 6px; white-space: pre; z-index: 1; }
thead th { top: 0; text-align: center; max-width: 56px; overflow: hidden; text-overflow: ellipsis; }
td { min-width: calc(13px * var(--zoom, 1)); height: calc(13px * var(--zoom, 1)); padding: 1px 3px; text-align: center; white-space: pre; max-width: 56px; overflow: hidden; }
td:hover { outline: 2px solid var(--text); }
#tell { position: fixed; bottom: 0; left: 0; right: 0; background: var(--back); border-top: 1px solid var(--line); padding: 6px 24px; font-family: ui-monospace, monospace; min-height: 20px; }
.legend { display: inline-block; width: 160px; height: 10px; vertical-align: middle; margin: 0 6px; }
</style></head><body><h1></h1>
<p><label>Zoom <input type="range" min="0.6" max="3" step="0.1" value="1"></label></p><main></main><div id="tell" role="status"></div>
<script type="application/json" id="data">DATA</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
document.title = document.querySelector("h1").textContent = data.title;
document.querySelector("input").oninput = e => document.body.style.setProperty("--zoom", e.target.value);
const shown = text => text && !text.trim() ? text.replaceAll(" ", "␣") : text;
const make = (tag, text) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; return e; };
const colour = (v, low, high) => {  // from blue over the page's colour to red where zero lies inside, else from white to blue
  if (v === null) return "transparent";
  if (low < 0) { const s = Math.max(-1, Math.min(1, v / Math.max(-low, high))); return s < 0 ? `rgba(38,101,200,${-s})` : `rgba(205,60,40,${s})`; }
  return `rgba(38,101,200,${Math.max(0, Math.min(1, (v - low) / (high - low || 1)))})`;
};
const tell = document.getElementById("tell");
for (const m of data.maps) {
  const main = document.querySelector("main");
  const h = make("h2", m.title); main.append(h);
  const legend = make("p", m.low.toPrecision(3)), bar = make("span"); bar.className = "legend";
  bar.style.background = `linear-gradient(to right, ${[0, .25, .5, .75, 1].map(t => colour(m.low + t * (m.high - m.low), m.low, m.high)).join(",")})`;
  legend.append(bar, m.high.toPrecision(3) + (m.unit ? " " + m.unit : "")); main.append(legend);
  const box = make("div"); box.className = "scroll"; const table = make("table"), head = make("thead"), top = make("tr");
  top.append(make("th", m.rows_name + " \\ " + m.columns_name));
  for (const c of m.columns) { const th = make("th", shown(c)); th.title = c; top.append(th); }
  head.append(top); table.append(head); const body = make("tbody");
  m.values.forEach((row, r) => {
    const tr = make("tr"); tr.append(make("th", m.rows[r]));
    row.forEach((v, c) => {
      const td = make("td", m.labels.length ? shown(m.labels[r][c]) : ""); td.style.background = colour(v, m.low, m.high); if (Math.abs(v) > 0.6 * Math.max(-m.low, m.high)) td.style.color = "#fff";
      td.onmouseenter = () => tell.textContent = `${m.rows_name} ${m.rows[r]}, ${m.columns_name} ${c} ${m.columns[c]}: ${v === null ? "nothing" : v.toPrecision(6) + (m.unit ? " " + m.unit : "")}${m.labels.length ? " " + m.labels[r][c] : ""}`;
      tr.append(td);
    });
    body.append(tr);
  });
  table.append(body); box.append(table); main.append(box);
}
</script></body></html>
)";

std::string escaped(std::string text) {
  for (size_t at = 0; (at = text.find("</", at)) != std::string::npos;) text.replace(at, 2, "<\\/");
  return text;
}

}  // namespace

Json rows_json(const std::vector<std::vector<double>>& rows) {
  Json all = Json::array();
  for (const std::vector<double>& row : rows)
    all.push_back(row.empty() ? Json(nullptr) : Json(row));
  return all;
}

std::string html_of(const std::string& title, const std::vector<HeatMap>& maps) {
  Json data = {{"title", title}, {"maps", Json::array()}};
  for (const HeatMap& m : maps) {
    data["maps"].push_back({{"title", m.title},
                            {"rows_name", m.rows_name},
                            {"columns_name", m.columns_name},
                            {"rows", m.rows},
                            {"columns", m.columns},
                            {"values", m.values},
                            {"labels", m.labels},
                            {"low", m.low},
                            {"high", m.high},
                            {"unit", m.unit}});
  }
  std::string page = kPage;
  page.replace(page.find("DATA"), 4, escaped(dump(data)));
  return page;
}

void PictureOptions::add_to(Command& app) {
  for (const auto& [name, to, help] :
       {std::tuple("--html", &html, "write a picture as one HTML file, with zoom and hover"),
        std::tuple("--svg", &svg, "write a picture as one SVG file")})
    app.add_option(name, *to, help)->type_name("FILE")->group("Output");
}

void PictureOptions::write(const std::string& title, const std::vector<HeatMap>& maps) const {
  constexpr size_t kMostCells = 200000;
  size_t cells = 0;
  for (const HeatMap& m : maps) cells += m.rows.size() * m.columns.size();
  if (!svg.empty() && cells > kMostCells)
    throw Error(
        ErrorKind::argument, svg, "cells",
        fmt::format("at most {} in an SVG file (a shorter prompt, or one --layer)", kMostCells),
        std::to_string(cells));
  const auto put = [](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(content)));
    file.commit();
  };
  if (!html.empty()) put(html, html_of(title, maps));
  if (!svg.empty()) put(svg, svg_of(title, maps));
}

}  // namespace stet::tool
